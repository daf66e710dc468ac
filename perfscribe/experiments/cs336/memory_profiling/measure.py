"""memory_profiling of CS336 assignment 2: the allocator's history of a forward pass or a training step.

On a GPU each cell is meant to run in a new process (isolation: cell), so that the allocator's cache contains no blocks
of other cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe.analytic.shapes import LanguageModel
from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from perfscribe.instruments.profiling.memory_timeline import Timeline
    from perfscribe.models.training_step import Step

# The phases of each mode, in order; forward keeps its graph and ends with the loss.
PHASES = {"inference": ("forward",), "forward": ("forward",), "full_step": ("forward", "backward", "optimizer")}
TIMELINE_POINTS = 200
LARGEST_GROUPS = 8


@dataclass(frozen=True)
class Recorded(LanguageModel):
    """Factors of a cell; mode: which pass is recorded."""

    mode: str


def run(cell: Cell) -> Measurement:
    """Warm up, take the peak of a pass without recording, then record one.

    One warm-up pass is enough to create AdamW's state and the workspaces of matrix products.
    """
    from perfscribe.base.partial import kept_on_failure
    from perfscribe.models.training_step import build, peak

    level = cell.read(Recorded)
    step, mode = build(level, cell.data_folder), level.mode
    if mode == "full_step":
        step.make_optimizer()
    measurement = Measurement(values={"parameters": sum(p.numel() for p in step.model.parameters())})
    with kept_on_failure(measurement):
        if _warm_up(step, mode):
            step.zero_grad()
            measurement.values |= peak("unrecorded", lambda: _pass(step, mode), step.device)
        step.zero_grad()
        _record(cell, step, mode, measurement)
    return measurement


def _pass(step: Step, mode: str, mark: Callable[[str], object] = lambda _: None) -> None:
    """Run one pass and mark each phase's end."""
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
    """Run a pass like the recorded one; False if memory runs out: the recording then shows what filled it."""
    from perfscribe.instruments.memory import is_oom

    try:
        step.zero_grad()
        _pass(step, mode)
    except RuntimeError as error:
        if not is_oom(error):
            raise
        return False
    return True


def _record(cell: Cell, step: Step, mode: str, measurement: Measurement) -> None:
    """Record a pass, even one that runs out of memory: its history into files, its summary into the measurement."""
    from perfscribe.instruments.profiling.memory_recorder import Recorder
    from perfscribe.instruments.profiling.memory_timeline import Timeline

    base = Path(cell.data_folder).parent / "memory" / "-".join(str(level) for level in cell.factors.values())
    recorder = Recorder(step.device, lambda: _labels(step), base.with_name(f"{base.name}.pickle"))
    try:
        with recorder:
            _pass(step, mode, recorder.mark)
    finally:
        recorder.history.write(base.with_name(f"{base.name}.json.gz"))
        timeline = Timeline(recorder.history, PHASES[mode], _copy_bytes(step))
        _keep_peaks(timeline, measurement)
        _keep_course(timeline, measurement)
        _keep_groups(timeline, measurement)


def _labels(step: Step) -> dict[str, list[torch.Tensor]]:
    """Return known tensors by kind: of the model, its batch and its optimizer."""
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
    """Return the sizes of autocast's copies of the linear layers' weights; none without autocast."""
    import torch

    if step.dtype in ("fp32", "tf32"):
        return set()
    linear = [part for part in step.model.modules() if isinstance(part, torch.nn.Linear)]
    return {2 * part.weight.numel() for part in linear}


def _keep_peaks(timeline: Timeline, measurement: Measurement) -> None:
    """Add each phase's peak (the allocator's, else replayed), end, and bytes by kind at the replayed peak."""
    peaks = []
    history = timeline.history
    marks = {mark.name: mark for mark in history.marks}
    measurement.values["start_bytes"] = timeline.totals[0]
    for phase, (_, last) in timeline.phase_ranges().items():
        index, mark = timeline.peak_index(phase), marks.get(phase)
        replayed = timeline.totals[index]
        peaks.append(replayed if mark is None or mark.peak_bytes is None else mark.peak_bytes)
        measurement.values |= {
            f"{phase}_end_bytes": timeline.totals[last],
            f"{phase}_peak_bytes": peaks[-1],
            f"{phase}_replayed_bytes": replayed,
        }
        if mark is not None and mark.reserved_bytes is not None:
            measurement.values[f"{phase}_reserved_bytes"] = mark.reserved_bytes
        measurement.series[f"{phase}_kinds_bytes"] = [sizes[index] for sizes in timeline.by_kind.values()]
    measurement.values |= {"peak_bytes": max(peaks, default=0), "memory_counter": history.counter}
    if reserved := [mark.reserved_bytes for mark in history.marks if mark.reserved_bytes is not None]:
        measurement.values["reserved_bytes"] = max(reserved)


def _keep_course(timeline: Timeline, measurement: Measurement) -> None:
    """Add bytes by kind at TIMELINE_POINTS moments at most, in a power-of-two unit that needs at most four digits."""
    indices = timeline.points(TIMELINE_POINTS)
    unit = 1
    while max(timeline.totals) >= 10_000 * unit:
        unit *= 2
    measurement.values |= {"changes": len(timeline.history.changes), "unit_bytes": unit}
    measurement.series |= {"change": indices, "phase_end": timeline.ends}
    for number, sizes in enumerate(timeline.by_kind.values()):
        course = [round(sizes[index] / unit) for index in indices]
        measurement.series[f"course_{number}"] = course[:1] if len(set(course)) == 1 else course


def _keep_groups(timeline: Timeline, measurement: Measurement) -> None:
    """Add the first LARGEST_GROUPS of Timeline.groups(), and the size of a sum on the residual stream."""
    groups = timeline.groups()
    residual = [group for group in groups if ":Block.forward:" in group.frame]
    if residual:
        measurement.values["residual_bytes"] = max(residual, key=lambda group: group.count).size_bytes
    for name in ("size_bytes", "count", "phase", "kind", "frame", "below"):
        measurement.series[f"group_{name}"] = [getattr(group, name) for group in groups[:LARGEST_GROUPS]]
