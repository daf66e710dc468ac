"""What happened in a range: host time, device time by kernel, and gaps.

Here a kernel belongs to a range where its launch began inside of it, on the range's thread or on another thread of the
process that was in no range of its own: so `backward` holds the kernels that autograd's thread launched. (The summary
of nsys, nvtx_kernels.py, counts the range's own thread alone.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perfscribe.instruments.profiling.trace import UNKNOWN_THREAD, Kernel, Range, Trace, process_and_thread

__all__ = ["Gap", "Launches", "Occurrence", "Total", "occurrence", "occurrences", "totals"]


@dataclass(frozen=True)
class Total:
    """Launches and device time of all kernels of one name, or of one family."""

    name: str
    count: int
    time_ns: int


@dataclass(frozen=True)
class Gap:
    """Time in which the device did nothing between two kernels.

    launch_bound: the next kernel's launch had not ended when the device fell idle, so it waited for the host; else
    the kernel was queued, and the time is the device's own.
    """

    start_ns: int
    end_ns: int
    launch_bound: bool


@dataclass(frozen=True)
class Occurrence:
    """One time that a range was run.

    host_ns: from its begin to its end on the host. kernels: those that it launched, in order of start, also where they
    ran after its end. span_ns: from the first kernel's start to the last one's end. busy_ns: the part of the span in
    which at least one ran. gap_ns: the rest; launch_bound_ns: the part of that in which the device waited for the host.
    All zero without kernels.
    """

    range: Range
    kernels: tuple[Kernel, ...]
    gaps: tuple[Gap, ...]

    @property
    def host_ns(self) -> int:
        """Time on the host."""
        return self.range.duration_ns

    @property
    def span_ns(self) -> int:
        """First start to last end on the device."""
        return max(one.end_ns for one in self.kernels) - self.kernels[0].start_ns if self.kernels else 0

    @property
    def gap_ns(self) -> int:
        """Time without any kernel within the span."""
        return sum(gap.end_ns - gap.start_ns for gap in self.gaps)

    @property
    def busy_ns(self) -> int:
        """Time with at least one kernel."""
        return self.span_ns - self.gap_ns

    @property
    def launch_bound_ns(self) -> int:
        """Time in which the device waited for the host."""
        return sum(gap.end_ns - gap.start_ns for gap in self.gaps if gap.launch_bound)

    @property
    def launch_bound_share(self) -> float:
        """Part of the span in which the device waited for the host, 0 to 1."""
        return self.launch_bound_ns / self.span_ns if self.kernels else 0.0

    @property
    def kernel_ns(self) -> int:
        """Sum of the kernels' times; more than busy_ns where some ran at the same time."""
        return sum(one.duration_ns for one in self.kernels)

    def by_name(self) -> list[Total]:
        """Totals by kernel name, the longest first."""
        return totals(self.kernels, lambda kernel: kernel.name)


def totals(kernels: Iterable[Kernel], key: Callable[[Kernel], str]) -> list[Total]:
    """Count and time of the kernels by this key, the longest first."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[key(kernel)].append(kernel)
    found = [Total(name, len(members), sum(one.duration_ns for one in members)) for name, members in groups.items()]
    return sorted(found, key=lambda total: (-total.time_ns, total.name))


def occurrences(trace: Trace, name: str) -> list[Occurrence]:
    """Every time that a range of this name was run, in order of begin; libraries' own domains do not count."""
    launches = Launches(trace)
    return [launches.occurrence(one) for one in trace.ranges if one.name == name and not one.domain]


def occurrence(trace: Trace, one: Range) -> Occurrence:
    """What happened in one range of the trace; for many ranges keep the Launches."""
    return Launches(trace).occurrence(one)


def _gaps(kernels: Sequence[Kernel]) -> Iterable[Gap]:
    """Gaps between kernels in order of start."""
    idle_from = kernels[0].start_ns if kernels else 0
    for kernel in kernels:
        if kernel.start_ns > idle_from:
            yield Gap(idle_from, kernel.start_ns, kernel.launch_end_ns > idle_from)
        idle_from = max(idle_from, kernel.end_ns)


class Launches:
    """A trace's kernels by the threads that launched them, and which of these launches lie in ranges."""

    def __init__(self, trace: Trace) -> None:
        self._own: dict[int, list[Kernel]] = defaultdict(list)
        for kernel in trace.kernels:
            if kernel.launch_thread != UNKNOWN_THREAD:
                self._own[kernel.launch_thread].append(kernel)
        ranges: dict[int, list[Range]] = defaultdict(list)
        for one in trace.ranges:
            if not one.domain:
                ranges[one.thread].append(one)
        self._free: dict[int, list[Kernel]] = {}
        for thread, kernels in self._own.items():
            kernels.sort(key=lambda kernel: kernel.launch_start_ns)
            self._free[thread] = _outside(kernels, ranges[thread])

    def occurrence(self, one: Range) -> Occurrence:
        """What happened in the range."""
        kernels = self.within(one)
        return Occurrence(one, tuple(kernels), tuple(_gaps(kernels)))

    def within(self, one: Range) -> list[Kernel]:
        """Kernels of the range, in order of start."""
        found = _between(self._own.get(one.thread, []), one)
        process = process_and_thread(one.thread)[0]
        for thread, kernels in self._free.items():
            if thread != one.thread and process_and_thread(thread)[0] == process:
                found += _between(kernels, one)
        return sorted(found, key=lambda kernel: (kernel.start_ns, kernel.end_ns))


def _between(kernels: Sequence[Kernel], one: Range) -> list[Kernel]:
    """Those whose launch, in whose order they are, began within the range."""
    first = bisect_left(kernels, one.start_ns, key=lambda kernel: kernel.launch_start_ns)
    last = bisect_right(kernels, one.end_ns, key=lambda kernel: kernel.launch_start_ns)
    return list(kernels[first:last])


def _outside(kernels: Sequence[Kernel], ranges: Sequence[Range]) -> list[Kernel]:
    """Those, in order of launch, whose launch began within none of the ranges."""
    waiting = sorted(ranges, key=lambda one: one.start_ns, reverse=True)
    found, covered_until = [], -1
    for kernel in kernels:
        while waiting and waiting[-1].start_ns <= kernel.launch_start_ns:
            covered_until = max(covered_until, waiting.pop().end_ns)
        if kernel.launch_start_ns > covered_until:
            found.append(kernel)
    return found
