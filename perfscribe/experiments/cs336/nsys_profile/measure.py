"""nsys_profile of CS336 assignment 2: inference and training steps under Nsight Systems, or under torch's profiler.

Passes are timed first without a profiler, in the cell's process. Then a separate program (program.py) makes the same
passes under nsys, always in a new process, so that cells may share theirs. If nsys is missing or sees no kernels,
torch's profiler traces the passes in the cell's process.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe.analytic.shapes import LanguageModel, Steps
from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscribe.instruments.profiling.trace import Trace

PROGRAM = "perfscribe.experiments.cs336.nsys_profile.program"
# Below a cell's default time limit, so that a hanging program leaves time for torch's profiler.
TIMEOUT_S = 300.0
# Phases whose host-clock times under the profiler are kept; for other phases the ranges are enough.
HOST_CLOCK_KEPT = ("forward", "full_step")
MS_DIGITS = 6  # of a millisecond: nanoseconds, the resolution of both clocks


@dataclass(frozen=True)
class Passes(LanguageModel, Steps):
    """Factors of a cell."""

    traced_steps: int
    detailed: bool


def run(cell: Cell) -> Measurement:
    """Time the passes without a profiler, then trace them; only inference if a training step runs out of memory."""
    import torch

    from perfscribe.base.partial import kept_on_failure

    level, measurement = cell.read(Passes), Measurement()
    with kept_on_failure(measurement):
        out_of_memory = _time_untraced(cell.data_folder, level, measurement)
        gc.collect()
        if level.device == "cuda":
            torch.cuda.empty_cache()
        _keep(_trace(cell, level, full_step=out_of_memory is None), level.detailed, measurement)
        if out_of_memory is not None:
            raise out_of_memory
    return measurement


def _time_untraced(data_folder: str, level: Passes, measurement: Measurement) -> BaseException | None:
    """Check the loss and time the passes; return the out-of-memory error of a full step, with its frames freed."""
    from perfscribe.instruments.memory import is_oom
    from perfscribe.instruments.timing import record, time_host
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build, time_full

    step = build(level, data_folder)
    measurement.values |= check_loss(step)
    inference = time_host(step.inference, warmup=level.warmup_steps, timed=level.timed_steps, device=step.device)
    record(measurement, "inference_ms", inference)
    try:
        step.make_optimizer()
        time_full(step, measurement, level)
    except Exception as error:
        if not is_oom(error):
            raise
        return error.with_traceback(None)
    return None


# --- tracing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """Traces and the tools that made them: kernels and ranges of one trace, or of one each if no tool gives both.

    host_ms: host clock's times by phase, under the tool that gave the ranges. remark: why torch's profiler was used, or
    the tool's messages.
    """

    kernels: Trace
    ranges: Trace
    host_ms: Mapping[str, list[float]]
    remark: str


def _trace(cell: Cell, level: Passes, full_step: bool) -> Traced:
    """Trace the passes by nsys; if that lacks kernels, also by torch's profiler, and keep nsys's ranges."""
    from perfscribe.experiments.cs336.nsys_profile import reading
    from perfscribe.instruments.profiling import nsys

    first, why = None, ""
    try:
        first, host_ms = _by_nsys(cell, level, full_step)
        nsys.check(first, uses_cuda=level.device == "cuda")
        if first.kernels:
            reading.device_times(first)
    except (nsys.NsysError, reading.NoKernel) as error:
        why = str(error)
    if first is not None and first.kernels and not why:
        return Traced(first, first, host_ms, "; ".join(first.remarks))
    second, torch_host_ms = _by_torch(cell.data_folder, level, full_step)
    if first is None or not first.ranges:
        return Traced(second, second, torch_host_ms, why)
    return Traced(second, first, host_ms, why or f"{first.tool} saw no kernels ({first.no_kernels})")


def _by_nsys(cell: Cell, level: Passes, full_step: bool) -> tuple[Trace, dict[str, list[float]]]:
    """Run the program under nsys; return its trace and its host-clock times. NsysError if there is no trace.

    RuntimeError if the program itself failed. The report is kept in nsys/, next to the folder of the data sets.
    """
    from perfscribe.instruments.profiling import nsys
    from perfscribe.instruments.profiling.nsys_export import read_sqlite

    found = nsys.find()
    data_folder = Path(cell.data_folder).resolve()
    name = f"{level.device}-{level.size}-{level.seq_len}-{level.dtype}"
    request = {"factors": dict(cell.factors), "data_folder": str(data_folder), "full_step": full_step}
    told, export = nsys.run_module(found, PROGRAM, request, data_folder.parent / "nsys" / name, TIMEOUT_S)
    try:
        return read_sqlite(export), told["host_ms"]
    except ValueError as error:
        raise nsys.NsysError(str(error)) from error
    finally:
        export.unlink(missing_ok=True)


def _by_torch(data_folder: str, level: Passes, full_step: bool) -> tuple[Trace, dict[str, list[float]]]:
    """Trace the same passes by torch's profiler, in this process."""
    from perfscribe.experiments.cs336.nsys_profile.program import traced_passes
    from perfscribe.instruments.profiling import torch_profiler
    from perfscribe.models.training_step import build

    step = build(level, data_folder)
    with torch_profiler.recording(level.device) as recorded:
        host_ms = traced_passes(step, warmup=level.warmup_steps, timed=level.traced_steps, full_step=full_step)
    return recorded.trace, host_ms


def _keep(traced: Traced, detailed: bool, measurement: Measurement) -> None:
    """Add to the measurement what tables need of the traces."""
    from perfscribe.experiments.cs336.nsys_profile import reading
    from perfscribe.instruments.timing import HOST_CLOCK

    clock = {f"{name}_traced_ms": list(traced.host_ms[name]) for name in HOST_CLOCK_KEPT if name in traced.host_ms}
    for tool, samples in (
        (HOST_CLOCK, clock),
        (traced.ranges.tool, reading.host_ranges(traced.ranges)),
        (traced.kernels.tool, reading.device_times(traced.kernels)),
    ):
        measurement.samples |= samples
        measurement.timers |= dict.fromkeys(samples, tool)
    measurement.series |= reading.kernel_series(traced.kernels, detailed)
    for group in (measurement.samples, measurement.warmup):
        group.update({name: [round(ms, MS_DIGITS) for ms in found] for name, found in group.items()})
    measurement.values |= {"range_tool": traced.ranges.tool, "kernel_tool": traced.kernels.tool}
    measurement.values["tool_remark"] = traced.remark or "none"
