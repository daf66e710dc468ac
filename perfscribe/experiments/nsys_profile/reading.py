"""What a record keeps of a trace: times of each phase, and which kernels ran in each range.

Kernels are kept by name, not by family, so that a better rule for families needs no new measurement: nothing here may
import those rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.summary import Launches
from perfscribe.instruments.profiling.trace import Range, Trace

NS_PER_MS = 1e6
PHASES = {
    "inference": ranges.INFERENCE,
    "forward": ranges.FORWARD,
    "backward": ranges.BACKWARD,
    "optimizer": ranges.OPTIMIZER,
}
# Of a training step's forward pass alone: inference has the same ranges once more.
PARTS = {"scores": ranges.ATTENTION_SCORES, "softmax": ranges.SOFTMAX, "final_matmul": ranges.FINAL_MATMUL}
# In a record that is not detailed, the kernels that make up a range's last 3 % of device time stand in one row.
KEPT_SHARE = 0.97
REST = "further kernels"


def instances(trace: Trace, name: str, inside: Sequence[Range] = ()) -> list[Range]:
    """The program's ranges of this name outside all warm-up and, where `inside` is given, in one of these ranges."""
    own = [found for found in trace.ranges if not found.domain]  # libraries have domains of their own
    warmup = [found for found in own if found.name == ranges.WARMUP]
    named = [found for found in own if found.name == name and not _lies_in(found, warmup)]
    return [found for found in named if not inside or _lies_in(found, inside)]


def _lies_in(inner: Range, outer: Iterable[Range]) -> bool:
    return any(one.start_ns <= inner.start_ns and inner.end_ns <= one.end_ns for one in outer)


def host_ranges(trace: Trace) -> dict[str, list[float]]:
    """Milliseconds of each phase's range on the host, one sample a pass."""
    found = {phase: instances(trace, name) for phase, name in PHASES.items()}
    return {
        f"{phase}_range_ms": [r.duration_ns / NS_PER_MS for r in passes] for phase, passes in found.items() if passes
    }


def device_times(trace: Trace) -> dict[str, list[float]]:
    """Milliseconds of each phase in which the device was busy, one sample a pass; of forward also span and waiting.

    ValueError where a phase launched no kernel.
    """
    launches, samples = Launches(trace), defaultdict(list)
    for phase, name in PHASES.items():
        for found in instances(trace, name):
            one = launches.occurrence(found)
            if not one.kernels:
                raise ValueError(f"no kernel in a range {name}")
            samples[f"{phase}_busy_ms"].append(one.busy_ns / NS_PER_MS)
            if phase == "forward":
                samples["forward_span_ms"].append(one.span_ns / NS_PER_MS)
                samples["forward_launch_bound_ms"].append(one.launch_bound_ns / NS_PER_MS)
    return dict(samples)


@dataclass(frozen=True)
class Row:
    """All launches of one kernel in all passes through one range; kernels: how many of them it adds up."""

    range: str
    kernel: str
    durations_ns: tuple[int, ...]
    kernels: int = 1

    @property
    def total_ns(self) -> int:
        """Device time of all launches."""
        return sum(self.durations_ns)


def rows(trace: Trace) -> list[Row]:
    """Device time by range and kernel, the largest of each range first; attention's ranges inside forward alone."""
    launches, forward = Launches(trace), instances(trace, ranges.FORWARD)
    wanted = {phase: instances(trace, name) for phase, name in PHASES.items()}
    wanted |= {part: instances(trace, name, forward) for part, name in PARTS.items() if forward}
    result = []
    for label, passes in wanted.items():
        by_name: dict[str, list[int]] = defaultdict(list)
        for found in passes:
            for kernel in launches.within(found):
                by_name[kernel.name].append(kernel.duration_ns)
        of_range = [Row(label, name, tuple(durations)) for name, durations in by_name.items()]
        result += sorted(of_range, key=lambda row: (-row.total_ns, row.kernel))
    return result


def without_rare(found: Sequence[Row]) -> list[Row]:
    """The rows, in each range those that make up KEPT_SHARE of its device time, and one that adds up the others."""
    result = []
    for label in dict.fromkeys(row.range for row in found):
        of_range = [row for row in found if row.range == label]
        left, kept = KEPT_SHARE * sum(row.total_ns for row in of_range), 0
        while left > 0:
            left -= of_range[kept].total_ns
            kept += 1
        result += of_range[:kept]
        if of_range[kept:]:
            durations = tuple(ns for row in of_range[kept:] for ns in row.durations_ns)
            result.append(Row(label, REST, durations, len(of_range) - kept))
    return result


def as_series(found: Sequence[Row], short: Mapping[str, str], detailed: bool) -> dict[str, list[Any]]:
    """The rows as a record's series: kernel_names, and for each range parallel lists of places in it and of figures.

    The figures are launches and total time; with detailed also median, shortest and longest time, in ns.
    """
    names = list(dict.fromkeys(short.get(row.kernel, row.kernel) for row in found))
    series: dict[str, list[Any]] = {"kernel_names": names}
    for row in found:
        figures = {"kernel": names.index(short.get(row.kernel, row.kernel)), "launches": len(row.durations_ns)}
        figures["total_ns"] = row.total_ns
        if row.kernel == REST:
            series[f"{row.range}_rest_kernels"] = [row.kernels]
        if detailed:
            figures["median_ns"] = round(median(row.durations_ns))
            figures |= {"min_ns": min(row.durations_ns), "max_ns": max(row.durations_ns)}
        for name, figure in figures.items():
            series.setdefault(f"{row.range}_{name}", []).append(figure)
    return series
