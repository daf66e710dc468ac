"""A timeline of one range to draw: the ranges within it, its kernels by family, and gaps."""

from __future__ import annotations

from dataclasses import dataclass

from perfscribe.profiling.families import family
from perfscribe.profiling.summary import occurrence
from perfscribe.profiling.trace import Range, Trace

GAP = "gap"
LAUNCH_BOUND, ON_DEVICE = "launch-bound", "on the device"


@dataclass(frozen=True)
class TimelineRow:
    """A bar: µs from the begin of the range drawn; row: "NVTX 0" (the range itself) and deeper, a family, or GAP."""

    start_us: float
    end_us: float
    row: str
    name: str


def timeline(trace: Trace, one: Range) -> list[TimelineRow]:
    """Bars for drawing one range: the ranges within it on its thread by depth, its kernels by family, and gaps."""
    found = occurrence(trace, one)
    bars = [(level.start_ns, level.end_ns, f"NVTX {depth}", level.name) for depth, level in _levels(trace, one)]
    bars += [(kernel.start_ns, kernel.end_ns, family(kernel.name), kernel.name) for kernel in found.kernels]
    bars += [(gap.start_ns, gap.end_ns, GAP, LAUNCH_BOUND if gap.launch_bound else ON_DEVICE) for gap in found.gaps]
    origin = one.start_ns
    return [TimelineRow((start - origin) / 1000, (end - origin) / 1000, row, name) for start, end, row, name in bars]


def _levels(trace: Trace, one: Range) -> list[tuple[int, Range]]:
    """The range and those within it on its thread, with their depth."""
    inside = [
        other
        for other in trace.ranges
        if other.thread == one.thread and one.start_ns <= other.start_ns and other.end_ns <= one.end_ns
    ]
    open_ranges: list[Range] = []
    found = []
    for level in sorted(inside, key=lambda other: (other.start_ns, -other.end_ns, other != one)):
        while open_ranges and open_ranges[-1].end_ns <= level.start_ns:
            open_ranges.pop()
        found.append((len(open_ranges), level))
        open_ranges.append(level)
    return found
