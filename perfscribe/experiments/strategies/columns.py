"""Columns of strategies' tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfscribe import tables as t
from perfscribe.counters import fsdp_memory, fsdp_traffic
from perfscribe.experiments.strategies import rows
from perfscribe.parallel.fsdp_plan import DDP, FSDP1, FSDP2, SINGLE, WHOLE
from perfscribe.records import Record
from perfscribe.tables import GIB, MIB, Column

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


def named(name: str, title: str, words: dict[Any, str]) -> Column:
    """A factor shown in words."""
    return Column(name, title, lambda record: words[record.factors[name]], kind="factor", exact=True)


def switch(name: str, title: str) -> Column:
    """A factor that is on or off."""
    return named(name, title, {False: "no", True: "yes"})


def plan() -> list[Column]:
    """What was asked for."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        named("strategy", "Strategy", STRATEGIES),
        named("api", "By", APIS),
        t.factor("dtype", "Dtype"),
        switch("offload", "CPU off-load"),
        switch("checkpointing", "Activation checkpointing"),
    ]


def samples_per_s(record: Record) -> float:
    """Samples of all ranks over the median step."""
    factors = record.factors
    return float(1e3 * factors["world_size"] * factors["batch"] / t.summary(record, "step_ms").median)


def gib(name: str, title: str, missing: str = "") -> Column:
    """Measured bytes in GiB; missing: said in place of a figure that the machine does not have."""

    def get(record: Record) -> Any:
        held = record.values if record.ok else {}  # a text in the place of a figure is of cells that were measured
        return missing if missing and held and f"{name}_bytes" not in held else record.values[f"{name}_bytes"] / GIB

    return t.derived(f"{name}_gib", title, get)


def others() -> Column:
    """What lay on the GPU beside the plans that were known to, right before the peak was looked at."""

    def get(record: Record) -> Any:
        held = record.values if record.ok else {}
        return "not counted" if held and "others_bytes" not in held else record.values["others_bytes"] / MIB

    return t.derived("others_mib", "Held by others (MiB)", get)


def predicted(name: str, title: str, of: Callable[[fsdp_memory.Load], float], scale: float = GIB) -> Column:
    """What the counters say, from the unwrapped model's parameters and the plan."""
    return t.derived(name, title, lambda record: of(rows.load(record)) / scale)


def _state(load: fsdp_memory.Load) -> float:
    return sum(fsdp_memory.state_bytes(load).values())


def sent() -> list[Column]:
    """Bytes a rank sends in a step."""

    def predicted_bytes(load: fsdp_memory.Load) -> float:
        return fsdp_traffic.sent_bytes(fsdp_traffic.messages(load))

    return [
        predicted("sent_predicted_mb", "Sent, predicted (MB)", predicted_bytes, MB),
        t.derived("sent_mb", "Sent, seen (MB)", lambda r: r.values["sent_bytes"] / MB),
    ]


def times(count: str = "n") -> list[Column]:
    """Samples a second and the step that they come from; count: what the number of samples is called."""
    return [
        t.rate("samples_per_s", "Samples/s", samples_per_s, "step_ms"),
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        t.count("step_ms", count),
    ]


def strategies() -> list[Column]:
    """Speed, peaks, state and traffic."""
    return [
        *plan(),
        *times(),
        gib("peak_allocated", "Peak allocated (GiB)"),
        gib("peak_reserved", "Peak reserved (GiB)", "no GPU"),
        others(),
        predicted("state_predicted_gib", "State a rank, predicted (GiB)", _state),
        gib("state", "State a rank, measured (GiB)"),
        *sent(),
        t.timer("step_ms"),
        *(_unshown(name, title) for name, title in (("batch", "Rows a rank"), ("seq_len", "Tokens a row"))),
    ]


def _unshown(name: str, title: str) -> Column:
    """A factor that the notes name."""
    return Column(name, title, lambda record: record.factors[name], kind="unshown", exact=True)


def memory() -> list[Column]:
    """State by kind, and what is gathered."""
    return [
        *plan(),
        gib("parameters", "Parameters (GiB)"),
        gib("gradients", "Gradients (GiB)"),
        gib("optimizer_state", "Optimizer state (GiB)"),
        t.value("state_device", "They lie on", exact=True),
        predicted("largest_unit_gib", "Largest unit, predicted (GiB)", fsdp_memory.largest_unit_bytes),
        predicted(
            "gathered_predicted_gib",
            "Gathered in the last block, predicted (GiB)",
            fsdp_memory.gathered_in_forward_bytes,
        ),
        gib("gathered_most", "measured (GiB)"),
        predicted(
            "between_predicted_gib",
            "Gathered between forward and backward, predicted (GiB)",
            fsdp_memory.gathered_between_bytes,
        ),
        gib("gathered_between", "measured (GiB)"),
    ]


def counted() -> list[Column]:
    """Parameters by part of the model."""
    return [
        t.factor("model", "Model"),
        t.factor("of", "Part"),
        t.value("parameters", "Parameters", exact=True),
        t.value("share_percent", "Share (%)"),
    ]


def accumulation() -> list[Column]:
    """Gradients of several micro-batches."""
    return [
        t.factor("model", "Model"),
        t.factor("world_size", "Ranks"),
        named("api", "By", APIS),
        switch("offload", "CPU off-load"),
        named("exchange", "Gradients exchanged", EXCHANGES),
        t.value("gradient_norm", "Gradient norm"),
        t.value("expected_norm", "of one process"),
        t.derived("norm_ratio", "Ratio", norm_ratio),
    ]


def norm_ratio(record: Record) -> float:
    """Norm of the gradients over that of one process; 1 where they are right."""
    return float(record.values["gradient_norm"] / record.values["expected_norm"])
