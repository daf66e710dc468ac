"""What each recorded sample and value is for a comparison: which way is better, or why it is not compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["time", "rate", "memory", "loss", "score"]
# Which way is better, by kind. Speed is told as faster or slower, all else as better or worse.
HIGHER_IS_BETTER: dict[str, bool] = {
    "time": False,
    "rate": True,
    "memory": False,
    "loss": False,
    "score": True,
}
SPEED = ("time", "rate")


@dataclass(frozen=True)
class Metric:
    """A pattern of names (fnmatch): of what kind these are; or None and why they are not compared."""

    pattern: str
    kind: Kind | None
    why: str = ""


PROFILED = "read under a profiler, which slows what it watches"
UNDER_PROFILERS = (
    *("*profiled_*", "profile_ms", "*_range_ms", "*_span_ms", "*_launch_bound_ms"),
    *(f"{state}_step_ms" for state in ("wait", "warmup", "active", "over")),  # of torch.profiler's schedule
)
DEVIATION = "a deviation from a reference: a check, made before anything is timed"
FIXED = "given by the cell or by the code, not by the machine"
DATA = "a property of the data"
METERS = "sampled by the workshop's own meters; peaks and times by ours are compared"
BOOKKEEPING = "tells what ran or what was free, not how well"

# The first that matches a name counts.
METRICS: tuple[Metric, ...] = (
    Metric("*traced*", None, PROFILED),
    *(Metric(name, None, PROFILED) for name in UNDER_PROFILERS),
    Metric("*_error", None, DEVIATION),
    Metric("*_error_over_std", None, DEVIATION),
    Metric("error*", None, DEVIATION),
    Metric("*difference", None, DEVIATION),
    Metric("*_norm", None, DEVIATION),
    Metric("identical_*", None, "what the scores' formula gives for the answers themselves: a check"),
    Metric("before_*_percent", None, "scores before training, of random weights or of a model that others trained"),
    Metric("*rated_gb_per_s", None, "by a data sheet or the driver, not measured"),
    # Rates before times: their names end in a second, too.
    Metric("*steps/s", "rate"),
    Metric("*_per_s", "rate"),
    Metric("*samples_per_second*", "rate"),
    Metric("*tokens_per_second*", "rate"),
    Metric("*utilisation_percent", None, "the driver's sampling of how often a kernel runs: neither way is better"),
    Metric("*utilisation_std_percent", None, "spread of the driver's sampling"),
    Metric("*utilisation_samples", None, BOOKKEEPING),
    Metric("homework_clock_s", None, "by the homework's own clock, which leaves work out; epoch_s is compared"),
    Metric("compiler_start_s", None, "paid once a process, by whichever cell comes first"),
    Metric("*_ms", "time"),
    Metric("*_s", "time"),
    Metric("after_*_percent", "score"),
    Metric("*_percent", None, "a share, computed of what is compared"),
    Metric("first_loss", None, "before any step: of the seed, not of the training"),
    Metric("*_first_loss", None, "before any step: of the seed, not of the training"),
    Metric("resumed_*", None, "of the same training, resumed: compared with its first part, not between machines"),
    Metric("loss_scale*", None, BOOKKEEPING),
    Metric("*loss", "loss"),
    # Of memory: what a training holds, not what it sends or stores.
    Metric("memory_before_backward_bytes", "memory"),
    Metric("*peak*_bytes", "memory"),
    Metric("allocated_*_bytes", "memory"),
    Metric("at_rest_bytes", "memory"),
    Metric("*_outside_bytes", "memory"),
    Metric("start_bytes", "memory"),
    Metric("*_end_bytes", "memory"),
    Metric("*reserved_bytes", "memory"),
    Metric("*replayed_bytes", None, "the peak once more, replayed from the history: a check of the recording"),
    Metric("*gathered_*_bytes", "memory"),
    Metric("*parameters_bytes", "memory"),
    Metric("*gradients_bytes", "memory"),
    Metric("*state_bytes", "memory"),
    Metric("gpu_used_bytes", None, "of the whole GPU, the driver's own part included"),
    Metric("free_bytes", None, BOOKKEEPING),
    Metric("bytes", None, FIXED),
    Metric("*_bytes", None, FIXED),
    Metric("*_bytes_per_sample", None, FIXED),
    Metric("*share*", None, FIXED),
    Metric("*parameters", None, FIXED),
    Metric("*parameter_tensors", None, FIXED),
    Metric("*steps", None, FIXED),
    Metric("steps_*", None, FIXED),
    Metric("*steps_per_epoch", None, FIXED),
    Metric("*_rows*", None, DATA),
    Metric("*_tokens", None, DATA),
    Metric("*_targets*", None, DATA),
    Metric("*_longest", None, DATA),
    Metric("*_cut_*", None, DATA),
    Metric("vocabulary_*", None, DATA),
    Metric("elements_checked", None, FIXED),
    Metric("bus_factor", None, FIXED),
    Metric("chunks_per_sample", None, FIXED),
    Metric("counted_reads", None, FIXED),
    Metric("*collectives", None, FIXED),
    Metric("*all_reduces", None, FIXED),
    Metric("*buckets", None, FIXED),
    Metric("gradient_calls", None, FIXED),
    Metric("implementations", None, FIXED),
    Metric("*units", None, FIXED),
    Metric("*blocks", None, FIXED),
    Metric("*replicas", None, FIXED),
    Metric("*shards", None, FIXED),
    Metric("*checkpointed", None, FIXED),
    Metric("*_MB", None, METERS),
    Metric("*_util_%", None, METERS),
    Metric("batch_found", None, "the batch that fits: cells of unlike batches are refused"),
    Metric("channels", None, BOOKKEEPING),
    Metric("gpus_per_node", None, BOOKKEEPING),
    Metric("hosts", None, BOOKKEEPING),
    Metric("variables_left", None, BOOKKEEPING),
    Metric("exit_code", None, BOOKKEEPING),
    Metric("pairs", None, BOOKKEEPING),
    Metric("changes", None, BOOKKEEPING),
    Metric("graphs", None, BOOKKEEPING),
    Metric("graph_breaks", None, BOOKKEEPING),
    Metric("recompiles", None, BOOKKEEPING),
    Metric("skipped_graphs", None, BOOKKEEPING),
)
UNKNOWN = "which way is better is not declared (perfscribe/verbs/compare/metrics.py)"

# Experiments without a figure of performance: the same on every machine, or right and wrong.
NOT_COMPARED: dict[str, str] = {
    "autocast_dtypes": "dtypes and rounding, no performance",
    "communication_accounting": "computed on paper, the same on every machine",
    "mixed_precision_accumulation": "rounding, no performance",
}
# What speaks for an experiment where one figure a cell is shown; the first that a cell has counts.
HEADLINES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("time_ms",),
    "attention": ("both_ms", "forward_ms"),
    "baseline": ("step_s",),
    "calibration": ("time_ms", "product_ms"),
    "checkpoints": ("save_s",),
    "communication": ("plain_train_s", "intra_rank0_step_ms"),
    "communication_nodes": ("inter_rank0_step_ms", "intra_rank0_step_ms"),
    "custom_multi_gpu": ("step_ms",),
    "ddp": ("naive_step_ms",),
    "dtypes": ("epoch_s",),
    "end_to_end": ("full_step_ms",),
    "flash_benchmarking": ("both_ms", "product_ms"),
    "io_formats": ("training_s",),
    "io_settings": ("epoch_s",),
    "memory_profiling": ("peak_unrecorded_bytes",),
    "multi_gpu": ("step_ms",),
    "nsys_profile": ("full_step_ms",),
    "optimizer_state_sharding": ("sharded_step_ms",),
    "preflight": ("busbw_gb_per_s",),
    "rank_methods": ("epoch_s",),
    "single_gpu": ("epoch_s",),
    "strategies": ("step_ms", "fsdp2_per_block_implicit_step_ms"),
    "tensor_dims": ("epoch_s",),
    "torch_compile": ("compiled_full_step_ms", "compiled_both_ms", "compiled_forward_ms"),
    "warmup": ("full_step_ms",),
    "weak_scaling": ("step_ms",),
}


def metric(name: str) -> Metric:
    """What is known of a name; one of no kind that says so where nothing is."""
    for known in METRICS:
        if fnmatchcase(name, known.pattern):
            return known
    return Metric(name, None, UNKNOWN)


def headline(experiment: str, names: Iterable[str]) -> str | None:
    """The name that speaks for a cell that has these, else its first time; None where it has no such figure."""
    found = list(names)
    for name in HEADLINES.get(experiment, ()):
        if name in found:
            return name
    return next((name for name in found if metric(name).kind == "time"), None)
