"""Columns and notes that the FSDP workshop's scaling tables share; a "GB" of its titles is 2^30 bytes here."""

from __future__ import annotations

from typing import Any

from perfscribe.experiments.training_rows import CALLBACK, STEPPING, TWO_STEPS, nodes_of, ranks_per_node
from perfscribe.records.records import Record
from perfscribe.show import tables as t

SCALE_NOTE = (
    "Samples/s and runtime are of whole trainings, with any evaluation and checkpoints; scale factors compare with the "
    "fewest GPUs of the same loop."
)
CLOCKS_NOTE = (
    "Default: Trainer's samples/s and the GPU's used memory by NVML; callback: the workshop's samples/s, memory "
    "allocated at rest and NVML's utilisation."
)


def _setup(record: Record) -> str:
    """The workshop's name of a row."""
    ranks, nodes, each = record.factors["world_size"], nodes_of(record), ranks_per_node(record)
    unit, units = ("GPU", "GPUs") if record.factors["device"] == "cuda" else ("process", "processes")
    if nodes > 1:
        return f"{nodes} Node" if each == 1 else f"{nodes} Node, {each} {units} each"
    return f"Single Node with Single {unit}" if ranks == 1 else f"{ranks} {units}"


def _rows_per_step(record: Record) -> Any:
    return record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"])


def _first_loss(record: Record) -> Any:
    """The first that was logged: of a step, or the mean of the first few; why not where none was."""
    return next(iter(record.series.get("train_loss", [])), "none logged")


def gib(figure: str, title: str, name: str) -> t.Column:
    """A meter's figure, which is in MiB."""
    return t.value(figure, title, 1 / 1024, name)


SETUP = [t.factor("setup", "Setup", _setup), t.factor("world_size", "Total GPUs")]
NODES = t.factor("nodes", "Nodes", nodes_of)
WORKLOAD = [
    NODES,
    *t.factors(device="Device", loop="Loop", dtype="Dtype", num_epochs="Epochs", batch_size="Batch a rank"),
    *t.factors(grad_acc="Accumulation", weights="Initial weights"),
    *t.settings("train_size", "max_length", "labels"),
]
ROWS_PER_STEP = t.derived("batch", "Rows a rank and step", _rows_per_step, exact=True)
SAMPLES_CALLBACK = t.value(CALLBACK, "Samples/s (Callback)", column="samples_per_s_callback")
SAMPLES_STEPPING = t.value(STEPPING, "Samples/s of steps alone")
RUNTIME = t.value("train_runtime_s", "Runtime (s)")
LOSS = t.value("train_loss", "Loss")  # the mean over all steps
FIRST_LOSS = t.Column("first_loss", "First loss logged", _first_loss, kind="unshown")
MEMORY_CALLBACK = gib("avg_mem_alloc_MB", "GPU Memory (GiB, Callback)", "avg_mem_alloc_gb")
MEMORY_PEAK = gib("peak_mem_alloc_MB", "Peak allocated (GiB)", "peak_mem_alloc_gb")
UTILISATION = t.value("avg_gpu_util_%", "GPU Utilization (%)", column="gpu_util_percent")
MFU = t.value("mfu", "MFU (%)")  # of the data sheet's dense peak
STEPS = [
    *t.only(lambda r: any(r.samples.get("step_ms", [])), TWO_STEPS, *t.timed("step_ms", "Step (ms)", "n")),
    t.timer("step_ms"),
]
WRAPPED = [t.value("wrapped_by", "Wrapped by", exact=True), t.value("units", "Units", exact=True)]
