"""The rows of optimizer_state_sharding's tables, from one record a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.analytic import sharding
from perfscribe.analytic.memory import total_bytes
from perfscribe.analytic.parameters import transformer_tensors
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.sharding import Scheme, Sharding, schemes
from perfscribe.analytic.workload import Workload
from perfscribe.experiments.optimizer_state_sharding.names import (
    AFTER_STEP,
    AGAIN,
    BEFORE_STEP,
    IMPLEMENTATIONS,
    INIT,
    PASSES,
    PEER,
    SHARDED,
    STEP,
    UNSHARDED,
)
from perfscribe.records.records import Record

NAMES = {UNSHARDED: "AdamW, unsharded", SHARDED: "sharded (ours)", PEER: "sharded (torch's ZeRO optimizer)"}
MOMENT_NAMES = {
    PASSES: "peak of forward, backward, averaging",
    BEFORE_STEP: "directly before the step",
    STEP: "peak of the optimizer step",
}
MODELS = {
    INIT: sharding.after_init,
    PASSES: sharding.passes_peak,
    BEFORE_STEP: sharding.before_step,
    STEP: sharding.step_peak,
    AFTER_STEP: sharding.before_step,
}


def by_implementation(records: Iterable[Record]) -> list[Record]:
    """A row for each optimizer of a cell, its samples and series under their own names."""
    return [_part(record, name) for record in records for name in IMPLEMENTATIONS]


def _part(record: Record, name: str) -> Record:
    def own(held: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{name}_"
        others = tuple(f"{other}_" for other in (*IMPLEMENTATIONS, AGAIN) if other != name)
        return {
            key.removeprefix(prefix): value
            for key, value in held.items()
            if not key.startswith(others) or key.startswith(prefix)
        }

    return replace(
        record,
        factors={**record.factors, "implementation": name},
        samples=own(record.samples),
        series=own(record.series),
        values=own(record.values),
        timers=own(record.timers),
    )


def by_moment(records: Iterable[Record]) -> list[Record]:
    """A row for each optimizer of a cell and each moment at which memory is broken down."""
    return [
        replace(record, factors={**record.factors, "moment": moment})
        for record in by_implementation(records)
        for moment in MOMENT_NAMES
    ]


def savings(records: Iterable[Record]) -> list[Record]:
    """A row for each sharded optimizer of a cell and each of those moments, with what the plain one held then."""
    found = []
    for record in records:
        plain = {moment: record.series.get(f"{UNSHARDED}_{moment}_bytes") for moment in MOMENT_NAMES}
        for row in by_moment([record]):
            if row.factors["implementation"] != UNSHARDED:
                held = plain[row.factors["moment"]]
                values = row.values | ({"unsharded_bytes": sum(held)} if held else {})
                found.append(replace(row, values=values))
    return found


def by_scheme(records: Sequence[Record]) -> list[Record]:
    """A row for each size, number of processes and way to divide the work, with what it costs by arithmetic."""
    seen: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        seen.setdefault((record.factors["size"], record.factors["world_size"]), []).append(record)
    found = []
    for (size, ranks), cells in seen.items():
        # Arithmetic needs no GPU, but a row stands for cells that were measured, or says why none was.
        chosen = next((cell for cell in cells if cell.ok), cells[0])
        for scheme in schemes(SIZES[size], ranks):
            values = _scheme(scheme, chosen) if chosen.ok else {}
            found.append(replace(chosen, factors={**chosen.factors, "scheme": scheme.name}, values=values))
    return found


def _scheme(scheme: Scheme, record: Record) -> dict[str, Any]:
    weights = 4 * sum(transformer_tensors(SIZES[record.factors["size"]]))
    return {
        **vars(scheme),
        "held_bytes": 2 * weights + scheme.state_bytes,
        "sent_bytes": scheme.gradient_bytes + scheme.parameter_bytes,
        "messages": scheme.gradient_messages + scheme.parameter_messages,
        "averaged_bytes": record.values["gradient_bytes"],
        "weights_bytes": weights,
    }


def held_bytes(record: Record, moment: str) -> int:
    """Counted bytes on the rank that held most."""
    return sum(record.series[f"{moment}_bytes"])


def predicted_bytes(record: Record, moment: str, implementation: str = "") -> int:
    """Predicted bytes on the rank that holds most; of the record's own implementation unless told."""
    f = record.factors
    name = implementation or str(f["implementation"])
    load = Workload(SIZES[f["size"]], f["batch"] // f["world_size"], f["seq_len"], f["dtype"], f["device"])
    exchange = f["backend"] if name == SHARDED else ""  # torch's broadcasts from where the parameters lie
    keepers = 1 if name == UNSHARDED else f["world_size"]
    return total_bytes(MODELS[moment](Sharding(load, keepers, f["wrapper"] == "flat", exchange)))
