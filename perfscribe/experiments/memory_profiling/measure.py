"""memory_profiling of CS336 assignment 2: the allocator's history of a forward pass or a training step.

Each cell is meant to run in a process of its own on a GPU (isolation: cell), so that no other cell's blocks lie in the
allocator's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens
from perfscribe.instruments import precision

if TYPE_CHECKING:
    import torch

    from perfscribe.instruments.profiling.memory_history import History
    from perfscribe.instruments.profiling.memory_timeline import Timeline
    from perfscribe.models.training_step import Step

Mark = Callable[[str], object]

# The phases of each mode, in order; forward keeps its graph and ends with the loss.
PHASES = {"inference": ("forward",), "forward": ("forward",), "full_step": ("forward", "backward", "optimizer")}
WARMUP_PASSES = 1  # enough for AdamW to have its state and matrix products their workspaces
TIMELINE_POINTS = 200
LARGEST_GROUPS = 8


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every context length."""
    return tokens.datasets(config["batch"], config["seq_len"], next(iter(SIZES.values())).vocab_size, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of the config's device, size, context length, mode and dtype."""
    levels = {name: config[name] for name in ("device", "size", "seq_len", "mode", "dtype")}
    return [_cell({**factors, "batch": config["batch"]}) for factors in grid(levels)]


def _cell(factors: dict[str, Any]) -> Cell:
    shape = SIZES[factors["size"]]
    return Cell(
        factors,
        requires=precision.requires(factors["device"], factors["dtype"]),
        # A fresh process and a model's parameters cost more than the few passes.
        cost=1e12 + shape.layers * 12.0 * shape.d_model**2 * (1e3 + factors["batch"] * factors["seq_len"]),
        data=(tokens.dataset_name(factors["batch"], factors["seq_len"]),),
    )


def run(cell: Cell) -> Measurement:
    """Warm up, take the peak of a pass without recording, then record one."""
    from perfscribe.base.partial import kept_on_failure
    from perfscribe.models.training_step import build, peak

    step = build(cell.factors, cell.data_folder)
    if cell["mode"] == "full_step":
        step.make_optimizer()
    measurement = Measurement(values={"parameters": sum(p.numel() for p in step.model.parameters())})
    with kept_on_failure(measurement):
        if _warm_up(step, cell["mode"]):
            step.zero_grad()
            measurement.values |= peak("unrecorded", lambda: _pass(step, cell["mode"], _nothing), step.device)
        step.zero_grad()
        _record(cell, step, measurement)
    return measurement


def _nothing(_: str) -> None:
    """Marks nothing."""


def _pass(step: Step, mode: str, mark: Mark) -> None:
    """One pass, each phase's end marked."""
    if mode == "inference":
        step.inference()
        mark("forward")
    elif mode == "forward":
        loss = step.loss()
        mark("forward")
        del loss
    else:
        step.full(mark)


def _warm_up(step: Step, mode: str) -> bool:
    """Run passes as the recorded one will be; False where memory runs out: a history is to tell what filled it."""
    from perfscribe.instruments.memory import is_oom

    try:
        for _ in range(WARMUP_PASSES):
            step.zero_grad()
            _pass(step, mode, _nothing)
    except RuntimeError as error:
        if not is_oom(error):
            raise
        return False
    return True


def _record(cell: Cell, step: Step, measurement: Measurement) -> None:
    """Record a pass; its history goes into files, its summary into the measurement, also where memory runs out."""
    from perfscribe.instruments.profiling import memory_history
    from perfscribe.instruments.profiling.memory_recorder import Recorder
    from perfscribe.instruments.profiling.memory_timeline import Timeline

    path = Path(cell.data_folder).parent / "memory" / f"{_file_name(cell)}.json.gz"
    recorder = Recorder(step.device, lambda: _labels(step), path.with_name(f"{_file_name(cell)}.pickle"))
    try:
        with recorder:
            _pass(step, cell["mode"], recorder.mark)
    finally:
        memory_history.write(recorder.history, path)
        timeline = Timeline(recorder.history, PHASES[cell["mode"]], _copy_bytes(step))
        _summarise(timeline, recorder.history, measurement)


def _file_name(cell: Cell) -> str:
    return "-".join(str(level) for level in cell.factors.values())


def _labels(step: Step) -> dict[str, list[torch.Tensor]]:
    """Tensors by kind: what is known of the model, its batch and its optimizer."""
    import torch

    from perfscribe.instruments.profiling.memory_timeline import GRADIENTS, PARAMETERS, STATE, TABLES

    state = step.optimizer.state.values() if step.optimizer else ()
    return {
        PARAMETERS: list(step.model.parameters()),
        TABLES: [*step.model.buffers(), step.inputs, step.targets],
        STATE: [tensor for held in state for tensor in held.values() if isinstance(tensor, torch.Tensor)],
        GRADIENTS: [p.grad for p in step.model.parameters() if p.grad is not None],
    }


def _copy_bytes(step: Step) -> set[int]:
    """Sizes of autocast's copies of the linear layers' weights; none without autocast."""
    import torch

    if step.dtype in ("fp32", "tf32"):
        return set()
    linear = [part for part in step.model.modules() if isinstance(part, torch.nn.Linear)]
    return {2 * part.weight.numel() for part in linear}


def _summarise(timeline: Timeline, history: History, measurement: Measurement) -> None:
    """Peaks by phase and by kind, the reduced course, the largest groups."""
    from perfscribe.instruments.profiling.memory_timeline import KINDS

    peaks = []
    marks = {mark.name: mark for mark in history.marks}
    measurement.values["start_bytes"] = timeline.totals[0]
    for phase, (_, last) in timeline.phase_ranges().items():
        measurement.values[f"{phase}_end_bytes"] = timeline.totals[last]
        index = timeline.peak_index(phase)
        replayed = timeline.totals[index]
        counted = marks[phase].peak_bytes if phase in marks else None
        peaks.append(replayed if counted is None else counted)
        measurement.values |= {f"{phase}_peak_bytes": peaks[-1], f"{phase}_replayed_bytes": replayed}
        if phase in marks and marks[phase].reserved_bytes is not None:
            measurement.values[f"{phase}_reserved_bytes"] = marks[phase].reserved_bytes
        kinds = timeline.by_kind([index])[0]
        measurement.series[f"{phase}_kinds_bytes"] = [kinds[kind] for kind in KINDS]
    reserved = [mark.reserved_bytes for mark in history.marks if mark.reserved_bytes is not None]
    measurement.values |= {"peak_bytes": max(peaks, default=0), "memory_counter": history.counter}
    if reserved:
        measurement.values["reserved_bytes"] = max(reserved)
    _keep_course(timeline, measurement)
    _keep_groups(timeline, measurement)


def _keep_course(timeline: Timeline, measurement: Measurement) -> None:
    """Bytes by kind at a few hundred moments, in a unit that needs four digits at most."""
    from perfscribe.instruments.profiling.memory_timeline import KINDS

    indices = timeline.points(TIMELINE_POINTS)
    unit = 1
    while max(timeline.totals) >= 10_000 * unit:
        unit *= 2
    rows = timeline.by_kind(indices)
    measurement.values |= {"changes": len(timeline.history.changes), "unit_bytes": unit}
    measurement.series["change"] = list(indices)
    measurement.series["phase_end"] = list(timeline.ends)
    for number, kind in enumerate(KINDS):
        course = [round(row[kind] / unit) for row in rows]
        measurement.series[f"course_{number}"] = course[:1] if len(set(course)) == 1 else course


def _keep_groups(timeline: Timeline, measurement: Measurement) -> None:
    """The groups of the largest blocks, and the size of what a layer adds to the residual stream."""
    groups = timeline.groups()
    residual = [group for group in groups if ":Block.forward:" in group.frame]
    if residual:
        measurement.values["residual_bytes"] = max(residual, key=lambda group: group.count).size_bytes
    for name in ("size_bytes", "count", "phase", "kind", "frame", "below"):
        measurement.series[f"group_{name}"] = [getattr(group, name) for group in groups[:LARGEST_GROUPS]]
