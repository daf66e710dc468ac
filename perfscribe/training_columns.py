"""Columns and definitions that the FSDP workshop's scaling tables share; a "GB" of its titles is 2^30 bytes here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfscribe import tables as t
from perfscribe.ceilings import peak_notes
from perfscribe.records import Record
from perfscribe.training_rows import MEASURED, PREDICTED, nodes_of, ranks_per_node, steps_of

MB_PER_GB = 1024
DEFAULT_NOTE = (
    "Samples/s and runtime: as Trainer counts them by default, rows times epochs over train_runtime, which evaluation "
    "and checkpoints are in. Loss: train_loss, the mean over all steps, not the last; the same rows are fewer steps on "
    "more ranks, the first of which are then a larger part of it; from random weights it is no statement about the "
    "trained model. GPU Memory Allocated (or Default): the GPU's used memory by NVML, what torch "
    "only reserves and the CUDA context included, so that it can exceed Peak allocated, which is torch's own count. "
    "GB: 2³⁰ bytes."
)
SCALE_NOTE = (
    "Scale factors, which the workshop does not define: samples/s of the row over samples/s of the first row; runtime "
    "of the first row over the runtime of the row. They differ where rows do not divide evenly."
)
CALLBACK_NOTE = (
    "Callback, as the workshop counts: samples/s are steps/s times batch, accumulation and ranks, steps and seconds "
    "added up from log to log, by a clock that starts when the callback is made and runs on through evaluation and "
    "checkpoints. avg_mem_alloc_MB, avg_mem_reserved_MB: torch's allocator; avg_mem_total_MB: the GPU's used memory by "
    "NVML; avg_gpu_util_%, std_gpu_util_%: NVML's utilisation, the share of its last sample period in which any kernel "
    "was there, NCCL's waiting ones too. Each is read once after every optimizer step, when activations are gone; mean "
    "(and population standard deviation) over ranks and steps."
)
TWIN_NOTE = (
    "Beside them: samples/s of steps alone, by a clock that waits for the device after each step and stops for "
    "evaluation and checkpoints, first step left out; the peak of torch's allocator, of the fullest rank; and the "
    "share of the device's peak rate that the model's matrix products reach (MFU)."
)
PREDICTED_NOTE = (
    "Predicted rows: what the step of one measured row takes beside exchanging (computing, in proportion to the FLOP "
    "of a rank, and what the host adds, cores that ranks share included), then what FSDP exchanges, by the latency and "
    "bandwidth that all_reduce measured on this machine; nothing overlaps. That row is the one divided by FSDP with "
    "most nearly as many ranks on a node, on several nodes where such were measured, else of most ranks. Samples/s of "
    "steps alone are of a mean step there, too, which is as much longer than the median one as in that row. The rest "
    "of that row's runtime, such as evaluation, stays. Memory: that row's, with each rank's part of weights, gradients "
    "and moments."
)
NODES_NOTE = (
    "Where a job on a cluster has the nodes, their ranks are measured, each node's started by a torchrun of its own. "
    "Predicted, they exchange with the bandwidth that communication_nodes measured between two nodes, by the latency "
    "within one. Without such a measurement a predicted row has what ranks compute and hold alone, and says no "
    "network measured: the loopback interface of one machine is none."
)
PREDICTION_NOTE = (
    "Median of optimizer steps, first one left out. Nothing overlapped is the most that computing and communicating "
    "take by these terms, all overlapped the least. Of measured rows they are those of the fewest ranks, so that the "
    "error shows what is not among them, perhaps AdamW's update, which each rank makes for its part alone; what the "
    "host does for each unit that is gathered; what ranks of a CPU take from each other. Predicted rows take the step "
    "of the nearest row, which holds these: all but communicating is then more than computing. Predicted as unmeasured "
    "rows are: the same of a measured row, from the nearest one of the others, so that the error is that of the rule."
)
WRAPPED_NOTE = (
    "Divided by: read off the model that was trained; where it is not what was asked for, the row is failed. One rank "
    "trains without FSDP, as the workshop does there. Units: modules that FSDP made units of; Accelerate puts a tied "
    "embedding, its head and the last norm into one group, which is gathered at once and counts as three. On a CPU "
    "each process computes with one thread."
)


MFU_NOTE = (
    "MFU: FLOP of a rank's matrix products in an optimizer step, forward and backward, 6 FLOP a token for each weight "
    "in them and 12 L H Q T for attention, the causal mask saving none, over the median step and the dense peak of one "
    "GPU by its data sheet."
)


def predicted_notes(records: Iterable[Record]) -> list[str]:
    """How rows are predicted, where any of these is."""
    return [PREDICTED_NOTE] if any(record.ok and record.origin == PREDICTED for record in records) else []


def mfu_notes(records: Iterable[Record]) -> list[str]:
    """How MFU is made, and by which peaks."""
    return [MFU_NOTE, *peak_notes(records)]


def setup_name(record: Record) -> str:
    """The workshop's name of a row."""
    ranks, nodes, each = record.factors["world_size"], nodes_of(record), ranks_per_node(record)
    unit = "GPU" if record.factors["device"] == "cuda" else "process"
    if nodes > 1:
        return f"{nodes} Node" if each == 1 else f"{nodes} Node, {each} {_plural(unit)} each"
    return f"Single Node with Single {unit}" if ranks == 1 else f"{ranks} {_plural(unit)}"


def _plural(unit: str) -> str:
    return "GPUs" if unit == "GPU" else "processes"


def setup() -> list[t.Column]:
    """Which row it is, and whether it was measured."""
    return [
        t.Column("setup", "Setup", setup_name, kind="factor", exact=True),
        t.factor("world_size", "Total GPUs"),
        t.Column("origin", "Origin", lambda record: record.origin, kind="factor", exact=True),
    ]


def workload() -> list[t.Column]:
    """Where what trains on what."""
    return [
        t.Column("nodes", "Nodes", nodes_of, kind="factor", exact=True),
        t.factor("device", "Device"),
        t.factor("loop", "Loop"),
        t.factor("dtype", "Dtype"),
        t.factor("num_epochs", "Epochs"),
        t.factor("batch_size", "Batch a rank"),
        t.factor("grad_acc", "Accumulation"),
        t.Column("weights", "Weights before", lambda r: r.factors["weights"], kind="factor", exact=True),
    ]


def samples_default(title: str = "Samples/s") -> t.Column:
    """Trainer's."""
    return t.value("train_samples_per_second", title)


def samples_callback(title: str = "Samples/s (Callback)") -> t.Column:
    """The callback's."""
    return t.value("train/samples_per_second_mean", title, column="samples_per_s_callback")


def samples_stepping() -> t.Column:
    """Of steps alone."""
    return t.value("stepping_samples_per_second", "Samples/s of steps alone")


def runtime() -> t.Column:
    """Trainer's."""
    return t.value("train_runtime_s", "Runtime (s)")


def loss() -> t.Column:
    """Trainer's."""
    return t.value("train_loss", "Loss")


def memory(name: str, title: str) -> t.Column:
    """One of the callback's memory figures in GB."""
    column = name.removesuffix("_MB") + "_gb"
    return t.value(name, title, 1 / MB_PER_GB, column)


def memory_default(title: str = "GPU Memory Allocated (GB)") -> t.Column:
    """What W&B shows of a GPU's memory by default: NVML's used memory."""
    return memory("avg_mem_total_MB", title)


def memory_callback() -> t.Column:
    """The callback's mean at rest."""
    return memory("avg_mem_alloc_MB", "GPU Memory (GB, Callback)")


def memory_peak() -> t.Column:
    """What has to fit."""
    return memory("peak_mem_alloc_MB", "Peak allocated (GB)")


def utilisation() -> t.Column:
    """The callback's."""
    return t.value("avg_gpu_util_%", "GPU Utilization (%)", column="gpu_util_percent")


def scales() -> tuple[t.Column, t.Column]:
    """Both of the workshop's."""
    return t.value("samples_scale", "Samples/s Scale Factor"), t.value("runtime_scale", "Runtime Scale Factor")


def steps() -> list[t.Column]:
    """The times of an optimizer step; of a predicted row the predicted one."""
    return [
        t.derived("step_ms", "Step (ms)", _step, spread="step_ms_iqr"),
        t.derived("step_ms_iqr", "IQR (ms)", lambda record: _of_steps(record, "iqr")),
        t.derived("step_ms_n", "n", lambda record: _of_steps(record, "n"), exact=True),
        t.derived("timer", "Timer", _timer, exact=True),
    ]


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
    if statistic == "iqr" and found.n == 1:
        return t.ONE_SAMPLE
    return getattr(found, statistic)


def _timer(record: Record) -> str | None:
    if not record.ok:
        return None
    return "predicted" if record.origin == PREDICTED else record.timers.get("step_ms", t.NOT_RECORDED)


def wrapped() -> list[t.Column]:
    """What divided the model."""
    return [t.value("wrapped_by", "Divided by", exact=True), t.value("units", "Units", exact=True)]


def optimizer_steps() -> t.Column:
    """Of the whole training: what a mean loss is over."""
    return t.Column("optimizer_steps", "Steps", steps_of, kind="factor", exact=True)


def rows_from() -> t.Column:
    """Where the rows' text is from: a file of SQuAD, or made here."""
    return t.value("rows_from", "Rows from", exact=True)


def prediction() -> list[t.Column]:
    """A step measured and predicted."""
    return [
        t.Column("setup", "Setup", setup_name, kind="factor", exact=True),
        t.factor("world_size", "Total GPUs"),
        t.Column("origin", "Origin", lambda record: record.origin, kind="factor", exact=True),
        t.factor("loop", "Loop"),
        t.derived("measured_ms", "Measured step (ms)", lambda r: _of_steps(r, "median"), spread="measured_ms_iqr"),
        t.derived("measured_ms_iqr", "IQR (ms)", lambda r: _of_steps(r, "iqr")),
        t.value("apart_ms", "Predicted, nothing overlapped (ms)"),
        t.value("error_percent", "Error (%)"),
        t.value("overlapped_ms", "Predicted, all overlapped (ms)"),
        t.value("overlapped_error_percent", "Error (%)"),
        t.value("compute_ms", "All but communicating (ms)"),
        t.value("communication_ms", "Communicating (ms)"),
        t.value("sent_bytes", "Sent by a rank (MB)", 1e-6, "sent_mb"),
        t.value("rule_ms", "Predicted as unmeasured rows are (ms)"),
        t.value("rule_error_percent", "Error (%)"),
        t.derived("step_ms_n", "n", lambda r: _of_steps(r, "n"), exact=True),
    ]
