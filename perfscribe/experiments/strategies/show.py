"""Tables and figure of strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.analytic import fsdp_memory, fsdp_traffic
from perfscribe.analytic.fsdp_plan import DDP, FSDP1, FSDP2, SINGLE, WHOLE
from perfscribe.experiments.strategies import drawings, rows
from perfscribe.experiments.strategies.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import GIB, MIB, Column, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
MB = 10**6
APIS = {SINGLE: "none", DDP: "DDP", FSDP1: "FSDP1", FSDP2: "FSDP2"}
STRATEGIES = {
    SINGLE: "the model alone",
    DDP: "DDP",
    "full_shard": "FULL_SHARD",
    "shard_grad_op": "SHARD_GRAD_OP",
    "hybrid_shard": "HYBRID_SHARD",
    "no_shard": "NO_SHARD",
}
WRAPPINGS = {WHOLE: "none: one unit", "per_block": "per block"}
PREFETCHES = {
    "implicit": "implicit",
    "forward": "forward explicit",
    "backward": "backward explicit",
    "both": "both explicit",
    "backward_pre": "backward_pre",
    "backward_post": "backward_post",
    "backward_post_forward": "backward_post, forward",
    "none": "none",
}
EXCHANGES = {"each": "with each micro-batch", "last": "with the last"}
NOTES = (
    "State: parameters, gradients and AdamW's moments in fp32 on the fullest rank, between backward and update.",
    "Sent: bytes per rank and step over a ring, predicted from the plan and seen by the dispatcher; peaks: of torch's "
    "allocator, other plans' memory left out.",
)
WRAPPING_NOTES = (
    "FULL_SHARD, all variants interleaved within one launch; step: the median over turns of each turn's median.",
    "FSDP1 with one unit, backward_post and forward is what the workshop's settings come to.",
)
ONE_NOTES = (
    "One rank, so that every shard is the whole: FSDP1 turns to NO_SHARD, FSDP2 keeps its strategy and copies units.",
)
ACCUMULATION_NOTES = (
    "Norm of the gradients after two micro-batches over that of the model in one process: a ratio of 1 is right.",
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Speed, state and traffic by plan; wrapping; a world of one; summed gradients."""
    cells = records["strategies"]
    grid, turns, one, sums = rows.grid(cells), rows.wrapping(cells), rows.world_of_one(cells), rows.accumulation(cells)
    return [
        t.make(TABLES[0], "Sharding strategies", grid, strategies(), NOTES),
        t.make(TABLES[1], "Wrapping and prefetching", turns, wrapping(), WRAPPING_NOTES),
        t.make(TABLES[2], "A world of one", one, world_of_one(), ONE_NOTES),
        t.make(TABLES[3], "Gradients of micro-batches", sums, accumulation(), ACCUMULATION_NOTES),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed and memory by strategy, and of wrapping and prefetching."""
    above = partial(drawings.strategies, rows=tables[TABLES[0]].ok)
    below = partial(drawings.wrapping, rows=tables[TABLES[1]].ok)
    draw = f.stacked(above, below, heights=(3.8, 3.2))
    return [f.Figure(FIGURES[0], drawings.CAPTION, draw, (7.4, 6.8), sample="step_ms")]


def strategies() -> list[Column]:
    """Speed, peaks, state and traffic."""
    return [
        *_plan(),
        *_times(),
        _gib("peak_allocated", "Peak allocated (GiB)"),
        _gib("peak_reserved", "Peak reserved (GiB)", "no GPU"),
        _others(),
        _predicted("state_predicted_gib", "State a rank, predicted (GiB)", _state),
        _gib("state", "State a rank, measured (GiB)"),
        *_sent(),
        t.timer("step_ms"),
        Column("batch", "Rows a rank", lambda record: record.factors["batch"], kind="unshown", exact=True),
        Column("seq_len", "Tokens a row", lambda record: record.factors["seq_len"], kind="unshown", exact=True),
    ]


def wrapping() -> list[Column]:
    """Interleaved variants."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        t.factor("dtype", "Dtype"),
        _named("api", "By", APIS),
        _named("wrapping", "Wrapping", WRAPPINGS),
        _named("prefetch", "Prefetch", PREFETCHES),
        t.value("applied_units", "Units", exact=True),
        *_times("Turns"),
        Column(
            "ratio",
            "Time over per block, implicit (×)",
            lambda record: record.values["ratio"],
            spread="ratio_spread",
            spread_get=lambda record: record.values["ratio_spread"],
        ),
        t.value("interval", "95 % interval", exact=True),
        t.value("verdict", "It is", exact=True),
        Column("units_verdict", "units_verdict", lambda record: record.values["units_verdict"], kind="unshown"),
        _gib("peak_allocated", "Peak allocated (GiB)"),
        _others(),
        _predicted("largest_unit_gib", "Largest unit, predicted (GiB)", fsdp_memory.largest_unit_bytes),
        _gib("gathered_most", "Gathered in the last block (GiB)"),
        _gib("gathered_between", "Gathered between forward and backward (GiB)"),
        *_sent(),
        t.value("collectives", "Collectives a step", exact=True),
        t.timer("step_ms"),
    ]


def world_of_one() -> list[Column]:
    """What sharding among one rank is."""
    return [
        *_plan(),
        t.derived("applied_strategy", "It is", lambda r: STRATEGIES[r.values["applied_strategy"]], exact=True),
        t.derived("mesh", "Copies × shards", _mesh, exact=True),
        t.value("collectives", "Collectives a step", exact=True),
        _gib("gathered_most", "Copied for the last block (GiB)"),
        _gib("state", "State (GiB)"),
        t.value("state_device", "It lies on", exact=True),
        _gib("peak_allocated", "Peak allocated (GiB)"),
        _rate(),
        t.count("step_ms"),
    ]


def accumulation() -> list[Column]:
    """Gradients of several micro-batches."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        _named("api", "By", APIS),
        _switch("offload", "CPU off-load"),
        _named("exchange", "Gradients exchanged", EXCHANGES),
        t.value("gradient_norm", "Gradient norm"),
        t.value("expected_norm", "of one process"),
        t.derived("norm_ratio", "Ratio", lambda r: r.values["gradient_norm"] / r.values["expected_norm"]),
    ]


def _named(name: str, title: str, words: dict[Any, str]) -> Column:
    """A factor shown in words."""
    return Column(name, title, lambda record: words[record.factors[name]], kind="factor", exact=True)


def _switch(name: str, title: str) -> Column:
    return _named(name, title, {False: "no", True: "yes"})


def _plan() -> list[Column]:
    """What was asked for."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        _named("strategy", "Strategy", STRATEGIES),
        _named("api", "By", APIS),
        t.factor("dtype", "Dtype"),
        _switch("offload", "CPU off-load"),
        _switch("checkpointing", "Activation checkpointing"),
    ]


def _times(count: str = "n") -> list[Column]:
    """Samples a second and the step that they come from; count: what the number of samples is called."""
    return [_rate(), t.median("step_ms", "Step (ms)"), t.iqr("step_ms", "IQR (ms)"), t.count("step_ms", count)]


def _rate() -> Column:
    return t.rate("samples_per_s", "Samples/s", _samples_per_s, "step_ms")


def _samples_per_s(record: Record) -> float:
    """Samples of all ranks over the median step."""
    factors = record.factors
    return float(1e3 * factors["world_size"] * factors["batch"] / t.summary(record, "step_ms").median)


def _gib(name: str, title: str, missing: str = "") -> Column:
    """Measured bytes in GiB; missing: said in place of a figure that the machine does not have."""

    def get(record: Record) -> Any:
        lacks = missing and record.ok and f"{name}_bytes" not in record.values
        return missing if lacks else record.values[f"{name}_bytes"] / GIB

    return t.derived(f"{name}_gib", title, get)


def _others() -> Column:
    """What lay on the GPU beside the plans that were known to, right before the peak was looked at."""

    def get(record: Record) -> Any:
        lacks = record.ok and "others_bytes" not in record.values
        return "not counted" if lacks else record.values["others_bytes"] / MIB

    return t.derived("others_mib", "Held by others (MiB)", get)


def _predicted(name: str, title: str, of: Callable[[fsdp_memory.Load], float], scale: float = GIB) -> Column:
    """What the counters say, from the unwrapped model's parameters and the plan."""
    return t.derived(name, title, lambda record: of(rows.load(record)) / scale)


def _state(load: fsdp_memory.Load) -> float:
    return sum(fsdp_memory.state_bytes(load).values())


def _sent() -> list[Column]:
    """Bytes a rank sends in a step."""

    def predicted_bytes(load: fsdp_memory.Load) -> float:
        return fsdp_traffic.sent_bytes(fsdp_traffic.messages(load))

    return [
        _predicted("sent_predicted_mb", "Sent, predicted (MB)", predicted_bytes, MB),
        t.derived("sent_mb", "Sent, seen (MB)", lambda record: record.values["sent_bytes"] / MB),
    ]


def _mesh(record: Record) -> str:
    return f"{record.values['applied_replicas']} × {record.values['applied_shards']}"
