"""Columns and notes of optimizer_state_sharding's tables."""

from __future__ import annotations

from typing import Any

from perfscribe import tables as t
from perfscribe.experiments.optimizer_state_sharding import predictions
from perfscribe.experiments.optimizer_state_sharding.names import (
    AFTER_STEP,
    BEFORE_STEP,
    INIT,
    KINDS,
    MOMENTS,
    PASSES,
    STEP,
)
from perfscribe.experiments.optimizer_state_sharding.rows import MOMENT_NAMES, NAMES
from perfscribe.records import Record
from perfscribe.tables import GIB, MIB

MOMENT_TITLES = {
    INIT: "After model initialisation (GiB)",
    PASSES: "Peak up to the step (GiB)",
    BEFORE_STEP: "Directly before the step (GiB)",
    STEP: "Peak of the step (GiB)",
    AFTER_STEP: "Directly after the step (GiB)",
}


def factors(*more: tuple[str, str]) -> list[t.Column]:
    """Size to number of processes, then those named."""
    titles = (
        ("size", "Size"),
        ("seq_len", "Context"),
        ("batch", "Global batch"),
        ("dtype", "Dtype"),
        ("backend", "Backend"),
        ("world_size", "Processes"),
    )
    return [t.factor(name, title) for name, title in (*titles, *more)]


def named(name: str, title: str, names: dict[str, str]) -> t.Column:
    """A factor shown in words."""
    return t.Column(name, title, lambda record: names[record.factors[name]], kind="factor", exact=True)


def implementation() -> t.Column:
    """Which optimizer."""
    return named("implementation", "Optimizer", NAMES)


def _moment() -> t.Column:
    return named("moment", "When", MOMENT_NAMES)


def _held(record: Record, moment: str) -> float:
    return predictions.measured_bytes(record, moment) / GIB


def held_column(moment: str) -> t.Column:
    """What is held at a moment."""
    return t.derived(f"{moment}_gib", MOMENT_TITLES[moment], lambda record: _held(record, moment))


def kind_column(kind: str) -> str:
    """Name of a kind's column."""
    return f"{kind.replace(', ', '_').replace(' ', '_')}_gib"


def memory() -> list[t.Column]:
    """Memory at each moment."""
    return [
        *factors(("wrapper", "Averaging")),
        implementation(),
        *map(held_column, MOMENTS),
        t.derived("outside_gib", "Beyond the allocator (GiB)", _outside),
    ]


# Texts that stand in a figure's place stand in rows of cells that were measured alone: the others raise KeyError.


def _outside(record: Record) -> Any:
    _held(record, INIT)
    found = record.values.get("outside_bytes")
    return "no GPU" if found is None else found / GIB


def kinds() -> list[t.Column]:
    """Memory by kind."""
    total = t.derived("sum_gib", "Sum (GiB)", lambda r: _held(r, r.factors["moment"]))
    return [*factors(), implementation(), _moment(), *map(_of_kind, KINDS), total]


def _of_kind(kind: str) -> t.Column:
    def get(record: Record) -> float:
        return predictions.measured_kinds(record, record.factors["moment"])[kind] / GIB

    return t.derived(kind_column(kind), f"{kind[0].upper()}{kind[1:]} (GiB)", get)


def prediction() -> list[t.Column]:
    """Measured and predicted."""
    return [
        *factors(),
        implementation(),
        _moment(),
        t.derived("measured_gib", "Measured (GiB)", lambda r: _held(r, r.factors["moment"])),
        t.derived("predicted_gib", "Predicted (GiB)", lambda r: _predicted(r) / GIB),
        t.derived("error_percent", "Error (%)", _error),
        t.derived("missing_term", "Largest difference", lambda r: predictions.missing(r, r.factors["moment"])[0]),
        t.derived("missing_mib", "of (MiB)", lambda r: predictions.missing(r, r.factors["moment"])[1] / MIB),
    ]


def _predicted(record: Record) -> int:
    _held(record, record.factors["moment"])
    return predictions.predicted_bytes(record, record.factors["moment"])


def _error(record: Record) -> Any:
    return predictions.error_percent(predictions.measured_bytes(record, record.factors["moment"]), _predicted(record))


def saved() -> list[t.Column]:
    """What sharding saves."""
    return [
        *factors(),
        implementation(),
        _moment(),
        t.derived("unsharded_gib", "Unsharded (GiB)", lambda r: r.values["unsharded_bytes"] / GIB),
        t.derived("sharded_gib", "Sharded (GiB)", lambda r: _held(r, r.factors["moment"])),
        t.derived("saved_gib", "Saved (GiB)", lambda r: _saved(r) / GIB),
        t.derived("predicted_gib", "Predicted (GiB)", lambda r: _predicted_saving(r) / GIB),
        t.derived("error_percent", "Error (%)", lambda r: predictions.error_percent(_saved(r), _predicted_saving(r))),
    ]


def _saved(record: Record) -> int:
    return int(record.values["unsharded_bytes"]) - predictions.measured_bytes(record, record.factors["moment"])


def _predicted_saving(record: Record) -> int:
    moment = record.factors["moment"]
    _held(record, moment)
    return predictions.predicted_bytes(record, moment, "unsharded") - predictions.predicted_bytes(record, moment)


def scheme() -> list[t.Column]:
    """Memory and traffic by arithmetic."""
    return [
        t.factor("size", "Size"),
        t.factor("world_size", "Processes"),
        t.factor("scheme", "Scheme"),
        t.value("state_bytes", "Optimizer state, fullest rank (GiB)", 1 / GIB, "state_gib"),
        t.value("balance", "of the mean (×)"),
        t.value("held_bytes", "with weights and gradients (GiB)", 1 / GIB, "held_gib"),
        t.value("collectives", "Collectives", exact=True),
        t.value("gradient_bytes", "Gradients sent (GiB)", 1 / GIB, "gradients_gib"),
        t.value("parameter_bytes", "Parameters sent (GiB)", 1 / GIB, "parameters_gib"),
        t.value("sent_bytes", "Sent in all (GiB)", 1 / GIB, "sent_gib"),
        t.value("messages", "Messages", exact=True),
        t.value("weights_bytes", "Gradients, predicted (GiB)", 1 / GIB, "weights_gib"),
        t.value("averaged_bytes", "counted (GiB)", 1 / GIB, "averaged_gib"),
    ]
