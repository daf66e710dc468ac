"""nsys_profile of CS336 assignment 2: inference and training steps under Nsight Systems, or under torch's profiler.

Passes are timed first with no profiler about, in the cell's own process. Then a program of its own (program.py) makes
the same passes under nsys; its process is a fresh one, so that cells may share theirs. Where nsys is missing or sees no
kernels, torch's profiler traces the passes in the cell's process.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Level, Measurement, grid
from perfscribe.data import tokens
from perfscribe.instruments import precision

if TYPE_CHECKING:
    from perfscribe.experiments.nsys_profile.tracing import Traced

# What the host clock read under the profiler; of other phases it is what their ranges say.
HOST_CLOCK_KEPT = ("forward", "full_step")
MS_DIGITS = 6  # of a millisecond: nanoseconds, which is what both clocks resolve


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every context length."""
    contexts = [*config["seq_len"], config["single_length"]["seq_len"]]
    return tokens.datasets(config["batch"], contexts, next(iter(SIZES.values())).vocab_size, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Size x context x dtype, then at one context the dtypes asked for there alone.

    The factor `detailed` says whether the record keeps every kernel and the timeline of one step.
    """
    single = config["single_length"]
    wanted: list[dict[str, Level]] = list(grid({name: config[name] for name in ("device", "size", "seq_len", "dtype")}))
    at_one = {"device": config["device"], "size": config["size"], "seq_len": [single["seq_len"]]}
    wanted += [levels for levels in grid({**at_one, "dtype": single["dtype"]}) if levels not in wanted]
    fixed = {name: config[name] for name in ("batch", "warmup_steps", "timed_steps", "traced_steps")}
    return [_cell({**levels, "detailed": _is_detailed(levels, config["detailed"]), **fixed}) for levels in wanted]


def _is_detailed(levels: Mapping[str, Any], detailed: Mapping[str, Any]) -> bool:
    return all(levels[name] in detailed[name] for name in ("size", "seq_len", "dtype"))


def _cell(factors: dict[str, Any]) -> Cell:
    weight = 4.0 if factors["dtype"] == "fp32" else 1.0
    shape, batch_tokens = SIZES[factors["size"]], factors["batch"] * factors["seq_len"]
    work = shape.layers * (12 * shape.d_model**2 + 2 * factors["seq_len"] * shape.d_model) * batch_tokens
    passes = 2 * factors["warmup_steps"] + factors["timed_steps"] + factors["traced_steps"]
    return Cell(
        factors,
        requires=precision.requires(factors["device"], factors["dtype"]),
        # Starting the traced program takes longer than the passes of the small sizes.
        cost=1e13 + float(weight * passes * work),
        data=(tokens.dataset_name(factors["batch"], factors["seq_len"]),),
    )


def run(cell: Cell) -> Measurement:
    """Time the passes without a profiler, then trace them; of a training step that finds no memory, inference alone."""
    from perfscribe.base.partial import kept_on_failure
    from perfscribe.experiments.nsys_profile.tracing import traced_by_any

    measurement = Measurement()
    with kept_on_failure(measurement):
        out_of_memory = _time_untraced(cell, measurement)
        _let_go(cell)
        _keep(cell, traced_by_any(cell, full_step=out_of_memory is None), measurement)
        if out_of_memory is not None:
            raise out_of_memory
    return measurement


def _time_untraced(cell: Cell, measurement: Measurement) -> BaseException | None:
    """Check the loss and time the passes; the error of a full step that runs out of memory, whose frames are freed."""
    from perfscribe.experiments.nsys_profile import program
    from perfscribe.instruments.memory import is_oom
    from perfscribe.instruments.timing import record
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build

    counts = {"warmup": cell["warmup_steps"], "timed": cell["timed_steps"]}
    step = build(cell.factors, cell.data_folder)
    measurement.values |= check_loss(step)
    record(measurement, "inference_ms", program.time_inference(step, **counts))
    try:
        phases = program.time_full_steps(step, **counts)
    except Exception as error:
        if not is_oom(error):
            raise
        return error.with_traceback(None)
    for name in program.PHASE_RANGES:
        record(measurement, f"{name}_ms", phases[name])
    record(measurement, "full_step_ms", phases["step"])
    return None


def _let_go(cell: Cell) -> None:
    """Give back the memory of passes that are over."""
    import torch

    gc.collect()
    if cell["device"] == "cuda":
        torch.cuda.empty_cache()


def _keep(cell: Cell, traced: Traced, measurement: Measurement) -> None:
    """Put into the measurement what tables need of the traces."""
    from perfscribe.experiments.nsys_profile import reading, timeline
    from perfscribe.experiments.nsys_profile.names import short_names
    from perfscribe.instruments.timing import HOST_CLOCK

    for name in HOST_CLOCK_KEPT:
        if name in traced.host_ms:
            measurement.samples[f"{name}_traced_ms"] = list(traced.host_ms[name])
            measurement.timers[f"{name}_traced_ms"] = HOST_CLOCK
    for trace, figures in (
        (traced.ranges, reading.host_ranges(traced.ranges)),
        (traced.kernels, reading.device_times(traced.kernels)),
    ):
        measurement.samples |= figures
        measurement.timers |= dict.fromkeys(figures, trace.tool)
    rows = reading.rows(traced.kernels)
    short = short_names(row.kernel for row in rows)
    if not cell["detailed"]:
        rows = reading.without_rare(rows)
    measurement.series |= reading.as_series(rows, short, cell["detailed"])
    if cell["detailed"]:
        measurement.series |= timeline.series(traced.kernels, measurement.series["kernel_names"], short)
    for group in (measurement.samples, measurement.warmup):
        group.update({name: [round(ms, MS_DIGITS) for ms in found] for name, found in group.items()})
    measurement.values |= {"range_tool": traced.ranges.tool, "kernel_tool": traced.kernels.tool}
    measurement.values["tool_remark"] = traced.remark or "none"
