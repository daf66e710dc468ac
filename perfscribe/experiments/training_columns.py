"""Columns and notes that the FSDP workshop's scaling tables share; a "GB" of its titles is 2^30 bytes here."""

from __future__ import annotations

from typing import Any

from perfscribe.experiments.training_rows import (
    CALLBACK,
    MEASURED,
    PREDICTED,
    STEPPING,
    nodes_of,
    ranks_per_node,
    steps_of,
)
from perfscribe.records.records import Record
from perfscribe.show import tables as t

MB_PER_GB = 1024
SCALE_NOTE = (
    "Samples/s and runtime are Trainer's, with evaluation and any checkpoints; scale factors compare with the first "
    "row."
)
CLOCKS_NOTE = (
    "Default: Trainer's samples/s and the GPU's used memory by NVML; callback: the workshop's samples/s, memory "
    "allocated at rest and NVML's utilisation."
)
PREDICTED_NOTE = (
    "Predicted rows: the step of the nearest measured row with the collectives of more ranks, by all_reduce's latency "
    "and bandwidth, nothing overlapped."
)


def setup_name(record: Record) -> str:
    """The workshop's name of a row."""
    ranks, nodes, each = record.factors["world_size"], nodes_of(record), ranks_per_node(record)
    unit, units = ("GPU", "GPUs") if record.factors["device"] == "cuda" else ("process", "processes")
    if nodes > 1:
        return f"{nodes} Node" if each == 1 else f"{nodes} Node, {each} {units} each"
    return f"Single Node with Single {unit}" if ranks == 1 else f"{ranks} {units}"


def setup() -> list[t.Column]:
    """Which row it is."""
    return [t.Column("setup", "Setup", setup_name, kind="factor", exact=True), t.factor("world_size", "Total GPUs")]


def origin() -> t.Column:
    """Whether it was measured."""
    return t.Column("origin", "Origin", lambda record: record.origin, kind="factor", exact=True)


def nodes() -> t.Column:
    """How many nodes its ranks are on."""
    return t.Column("nodes", "Nodes", nodes_of, kind="factor", exact=True)


def workload() -> list[t.Column]:
    """What trains on what."""
    return [
        t.Column("optimizer_steps", "Steps", steps_of, kind="factor", exact=True),
        nodes(),
        t.factor("device", "Device"),
        t.factor("loop", "Loop"),
        t.factor("dtype", "Dtype"),
        t.factor("num_epochs", "Epochs"),
        t.factor("batch_size", "Batch a rank"),
        t.factor("grad_acc", "Accumulation"),
        t.factor("weights", "Weights before"),
    ]


def samples_default(title: str = "Samples/s") -> t.Column:
    """Trainer's."""
    return t.value("train_samples_per_second", title)


def samples_callback() -> t.Column:
    """The callback's."""
    return t.value(CALLBACK, "Samples/s (Callback)", column="samples_per_s_callback")


def samples_stepping() -> t.Column:
    """Of steps alone."""
    return t.value(STEPPING, "Samples/s of steps alone")


def runtime() -> t.Column:
    """Trainer's."""
    return t.value("train_runtime_s", "Runtime (s)")


def loss() -> t.Column:
    """Trainer's: the mean over all steps."""
    return t.value("train_loss", "Loss")


def memory_default(title: str = "GPU Memory Allocated (GiB)") -> t.Column:
    """What W&B shows of a GPU's memory by default: NVML's used memory."""
    return t.value("avg_mem_total_MB", title, 1 / MB_PER_GB, "avg_mem_total_gb")


def memory_callback() -> t.Column:
    """The callback's mean at rest."""
    return t.value("avg_mem_alloc_MB", "GPU Memory (GiB, Callback)", 1 / MB_PER_GB, "avg_mem_alloc_gb")


def memory_peak() -> t.Column:
    """What has to fit."""
    return t.value("peak_mem_alloc_MB", "Peak allocated (GiB)", 1 / MB_PER_GB, "peak_mem_alloc_gb")


def utilisation() -> t.Column:
    """The callback's."""
    return t.value("avg_gpu_util_%", "GPU Utilization (%)", column="gpu_util_percent")


def mfu() -> t.Column:
    """Of the data sheet's dense peak."""
    return t.value("mfu", "MFU (%)")


def steps() -> list[t.Column]:
    """The times of an optimizer step; of a predicted row the predicted one."""
    return [
        t.derived("step_ms", "Step (ms)", _step, spread="step_ms_iqr"),
        t.derived("step_ms_iqr", "IQR (ms)", lambda record: _of_steps(record, "iqr")),
        t.derived("step_ms_n", "n", lambda record: _of_steps(record, "n"), exact=True),
        t.derived("timer", "Timer", _timer, exact=True),
    ]


def wrapped() -> list[t.Column]:
    """What divided the model."""
    return [t.value("wrapped_by", "Divided by", exact=True), t.value("units", "Units", exact=True)]


def rows_from() -> t.Column:
    """Where the rows' text is from: a file of SQuAD, or made here."""
    return t.value("rows_from", "Rows from", exact=True)


def _step(record: Record) -> Any:
    return record.values["apart_ms"] if record.origin == PREDICTED else _of_steps(record, "median")


def _of_steps(record: Record, statistic: str) -> Any:
    if not record.ok:
        return None
    if record.origin != MEASURED:
        return "predicted"
    if not any(record.samples["step_ms"]):
        return "too few steps"
    found = t.summary(record, "step_ms")
    return t.ONE_SAMPLE if statistic == "iqr" and found.n == 1 else getattr(found, statistic)


def _timer(record: Record) -> str | None:
    if not record.ok:
        return None
    return "predicted" if record.origin == PREDICTED else record.timers.get("step_ms", t.NOT_RECORDED)
