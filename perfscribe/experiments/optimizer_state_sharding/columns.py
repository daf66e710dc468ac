"""Columns and notes of optimizer_state_sharding's tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfscribe import references
from perfscribe import tables as t
from perfscribe.counters.sharding import GLOO_CHUNK_BYTES
from perfscribe.experiments.optimizer_state_sharding import predictions
from perfscribe.experiments.optimizer_state_sharding.names import (
    AFTER_STEP,
    BEFORE_STEP,
    INIT,
    KINDS,
    MOMENTS,
    PASSES,
    SHARDED,
    STEP,
)
from perfscribe.experiments.optimizer_state_sharding.rows import MOMENT_NAMES, NAMES, TIME_NAMES
from perfscribe.parallel.partition import PIECE_BYTES
from perfscribe.records import Record
from perfscribe.tables import GIB, MIB

MOMENT_TITLES = {
    INIT: "After model initialisation (GiB)",
    PASSES: "Peak up to the step (GiB)",
    BEFORE_STEP: "Directly before the step (GiB)",
    STEP: "Peak of the step (GiB)",
    AFTER_STEP: "Directly after the step (GiB)",
}
SOURCES = ("brandon-snider", "damek", "kesavanramakrishnan")
# What a source prints: the peak of the stretch before each moment, or what is allocated at it.
OF_PEAKS = {"brandon-snider": True, "damek": False, "kesavanramakrishnan": False}
PUBLISHED = {
    "memory_after_init_gib": (INIT, INIT),
    "memory_before_step_gib": (PASSES, BEFORE_STEP),
    "memory_after_step_gib": (STEP, AFTER_STEP),
}

MEMORY_NOTES = [
    "Bytes that torch's allocator has handed out for tensors, on the rank that holds most, in a step after the first "
    "ones, when optimizer state exists already and gradients do not. The step is the optimizer's. Batch: of all "
    "processes together. Beyond the allocator: CUDA's context and NCCL's buffers.",
]
KIND_NOTES = [
    "Of the rank that holds most. Parameters, gradients and optimizer state: sizes of these tensors. Activations and "
    "temporaries: all else that comes and goes, at the peak of the step AdamW's temporaries. Communication buffers: "
    "what averaging and the exchange of parameters add where they have the peak; NCCL's own are not in it. A gradient "
    "that backward has not handed over yet counts as an activation.",
]
PREDICTION_NOTES = [
    "Predicted by counting the tensors that our implementation holds (perfscribe/counters/sharding.py). Error: of the "
    "prediction, in percent of what was measured. Largest difference: the kind in which the two differ most, measured "
    "minus predicted.",
]
SAVED_NOTES = [
    "What the plain optimizer holds more, on the ranks that hold most. Sharding divides AdamW's two moments; at the "
    "peak of the step AdamW's temporaries are fewer too, as each rank updates a part of the parameters.",
]
TIME_NOTES = [
    "Host clock; ranks start each call together, and its time is the longest of any rank. Step: forward, backward, "
    "averaging of gradients and optimizer, with no wait between them. Optimizer: its step alone, on gradients that are "
    "there. Update and exchange: our optimizer's two parts with a wait after each, which with NCCL otherwise overlap: "
    f"while a piece of at most {PIECE_BYTES // MIB} MiB a rank travels, the next is updated. Gloo sends flat copies of "
    f"at most {GLOO_CHUNK_BYTES // MIB} MiB a rank. Off by: largest relative difference of a parameter from the plain "
    "optimizer's after ten steps on the same gradients, checked before anything is timed.",
]
SPEED_NOTES = [
    "Times of plain and sharded optimizers come from the same turns, on the same model and gradients. The interval is "
    "a bootstrap over turns; below one means that sharding takes less time.",
]
SCHEME_NOTES = [
    "Arithmetic in fp32. Sent: by each rank in a step, on average over ranks, where collectives go round a ring: the "
    "bytes times (n - 1)/n for a reduce-scatter, an all-gather, or broadcasts of parts, twice that for an all-reduce. "
    "Messages: a tensor each, or one for all in ZeRO, which works on the flattened model. Counted: bytes of gradients "
    "that a rank handed to its all-reduces in one measured step; predicted are the bytes of all weights.",
]
PUBLISHED_NOTES = [
    "A published figure stands beside ours where all levels that its source states are the same. brandon-snider prints "
    "the peak of the stretch before each moment, damek and kesavanramakrishnan what is allocated at the moment; ours "
    "follows the source.",
]


def factors(*more: tuple[str, str]) -> list[t.Column]:
    """Size to number of processes, then those named."""
    titles = (
        ("size", "Size"),
        ("seq_len", "Context"),
        ("batch", "Batch"),
        ("dtype", "Dtype"),
        ("backend", "Backend"),
        ("world_size", "Processes"),
    )
    return [t.factor(name, title) for name, title in (*titles, *more)]


def _named(name: str, title: str, names: dict[str, str]) -> t.Column:
    """A factor shown in words."""
    return t.Column(name, title, lambda record: names[record.factors[name]], kind="factor", exact=True)


def implementation() -> t.Column:
    """Which optimizer."""
    return _named("implementation", "Optimizer", NAMES)


def _moment() -> t.Column:
    return _named("moment", "When", MOMENT_NAMES)


def _held(record: Record, moment: str) -> float:
    return predictions.measured_bytes(record, moment) / GIB


def _held_column(moment: str) -> t.Column:
    return t.derived(f"{moment}_gib", MOMENT_TITLES[moment], lambda record: _held(record, moment))


def kind_column(kind: str) -> str:
    """Name of a kind's column."""
    return f"{kind.replace(', ', '_').replace(' ', '_')}_gib"


def memory() -> list[t.Column]:
    """Memory at each moment."""
    return [
        *factors(("wrapper", "Averaging")),
        implementation(),
        *map(_held_column, MOMENTS),
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


def times() -> list[t.Column]:
    """Step and optimizer times."""
    return [
        *factors(("wrapper", "Averaging")),
        implementation(),
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        t.count("step_ms"),
        t.median("optimizer_ms", "Optimizer (ms)"),
        t.iqr("optimizer_ms", "IQR (ms)"),
        t.count("optimizer_ms"),
        t.derived("update_ms", "Update (ms)", _of_ours("update_ms"), spread="update_ms_iqr"),
        t.derived("exchange_ms", "Exchange (ms)", _of_ours("exchange_ms"), spread="exchange_ms_iqr"),
        *(_unshown_iqr(name) for name in ("update_ms", "exchange_ms")),
        t.derived("off_by", "Off by", _difference, exact=True),
        t.timer("step_ms"),
    ]


def _of_ours(sample: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        step = record.samples["step_ms"]
        return t.summary(record, sample).median if step and sample in record.samples else "not apart"

    return get


def _unshown_iqr(sample: str) -> t.Column:
    def get(record: Record) -> Any:
        if record.samples["step_ms"] and sample not in record.samples:
            return "not apart"
        found = t.summary(record, sample)
        return t.ONE_SAMPLE if found.n == 1 else found.iqr

    return t.Column(f"{sample}_iqr", f"spread of {sample}", get, kind="unshown")


def _difference(record: Record) -> Any:
    if record.samples["step_ms"] and record.factors["implementation"] != SHARDED:
        return "not compared"
    return f"{record.values['difference']:.2g}"


def speed() -> list[t.Column]:
    """Ratios of times."""
    return [
        *factors(),
        implementation(),
        _named("timed", "Timed", TIME_NAMES),
        t.Column(
            "ratio",
            "Sharded over unsharded (×)",
            lambda r: r.values["ratio"],
            spread="ratio_spread",
            spread_get=lambda r: r.values["ratio_spread"],
        ),
        t.value("interval", "95 % interval", exact=True),
        t.value("verdict", "Sharded is", exact=True),
        t.value("self_percent", "Unsharded against itself, up to (%)"),
        t.value("turns", "Turns", exact=True),
        t.count("time_ms"),
        *map(_unshown, ("low", "high")),
    ]


def _unshown(name: str) -> t.Column:
    """A value for the CSV and the figures alone."""
    return t.Column(name, name, lambda record: record.values[name], kind="unshown")


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


@cache
def _known() -> tuple[references.Reference, ...]:
    return tuple(references.load("optimizer_state_sharding"))


def published(rows: list[Record]) -> list[t.Column]:
    """Ours and, behind each, what sources print for the same levels; sources without any such figure are left out."""
    columns: list[t.Column] = []
    for source in SOURCES:
        for metric, of in PUBLISHED.items():
            moment = of[0] if OF_PEAKS[source] else of[1]
            if _gives(source, metric, rows):
                title = MOMENT_TITLES[moment].removesuffix(" (GiB)")
                columns += [_held_column(moment), _published(source, metric, f"{title}, {source} (GiB)")]
    columns = _once(columns)
    step = [
        _published(source, "step_ms", f"Step, {source} (ms)") for source in SOURCES if _gives(source, "step_ms", rows)
    ]
    return [*factors(), implementation(), *columns, t.median("step_ms", "Step (ms)"), *step]


def _once(columns: list[t.Column]) -> list[t.Column]:
    return list({column.name: column for column in columns}.values())


def _gives(source: str, metric: str, rows: list[Record]) -> bool:
    return any(references.of_source(_known(), source, metric, row.factors) for row in rows)


def _published(source: str, metric: str, title: str) -> t.Column:
    def get(record: Record) -> Any:
        found = references.of_source(_known(), source, metric, record.factors)
        return "none" if found is None else found.shown

    return t.Column(f"{metric}_{source}", title, get, kind="published", exact=True)
