"""Table of fsdp_step."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.experiments.fsdp.fsdp_step.levels import SHOWN
from perfscribe.experiments.fsdp.strategies.show import APIS, RATE, WRAPPINGS
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.ceilings import mfu_percent

NOTES = (
    "Traced: one step of rank 0 under the torch profiler, which slows it; idle: neither computing nor communicating.",
    "MFU: of the data sheet's dense peak, by the untraced step.",
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table, one row per number of ranks, wrapping and batch."""
    columns = [
        *t.factors(model="Model", world_size="Ranks", dtype="Dtype"),
        t.named("api", "By", APIS),
        t.named("wrapping", "Wrapping", WRAPPINGS),
        t.factor("batch", "Rows a rank"),
        RATE,
        *t.timed("step_ms", "Step (ms)", "n"),
        t.derived("mfu", "MFU (%)", _mfu),
        t.gib("peak_allocated", "Peak allocated"),
        *t.values(traced_step_ms="Traced step (ms)", traced_compute_ms="Computing (ms)"),
        *t.values(traced_communication_ms="Communicating (ms)", traced_both_ms="Both at once (ms)"),
        t.derived("sends_ms", "Only communicating (ms)", _sends_ms),
        t.derived("idle_ms", "Idle (ms)", _idle_ms),
        t.value("threads", "Threads a rank", exact=True),
        t.timer("step_ms"),
        *t.settings("seq_len"),
    ]
    return [t.make(SHOWN.tables[0], "One step under FULL_SHARD", records["fsdp_step"], columns, NOTES)]


def _sends_ms(record: Record) -> float:
    return float(record.values["traced_communication_ms"] - record.values["traced_both_ms"])


def _idle_ms(record: Record) -> float:
    return float(record.values["traced_step_ms"] - record.values["traced_compute_ms"]) - _sends_ms(record)


def _mfu(record: Record) -> Any:
    factors = record.factors
    if factors["model"] not in BLOOM:
        return "no peak known"
    flop = step_flop(BLOOM[factors["model"]], factors["batch"] * factors["seq_len"], factors["seq_len"])
    return mfu_percent(record, flop, t.summary(record, "step_ms").median / 1e3)
