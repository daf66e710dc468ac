"""Assigns kernels to ranges, and computes how long they kept the device busy.

A kernel belongs to a range if its launch began inside it, on the range's thread or on another thread of the process
that was in no range itself: so `backward` contains the kernels launched by autograd's thread. (nsys's own
summary counts only the range's thread.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfscribe.instruments.profiling.trace import UNKNOWN_THREAD, Kernel, Range, Trace, process_and_thread

Span = tuple[int, int]  # begin and end, ns


def merged(spans: Iterable[Span], nearest_ns: int = 0) -> list[Span]:
    """Return spans in order, merging those that overlap or are at most `nearest_ns` apart."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= nearest_ns:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def length_ns(spans: Iterable[Span]) -> int:
    """Return the sum of the spans' lengths."""
    return sum(end - start for start, end in spans)


@dataclass(frozen=True)
class DeviceTime:
    """span_ns: from the first kernel's start to the last one's end. busy_ns: the part in which at least one ran.

    launch_bound_ns: the part of the rest in which the device waited for the host to launch the next kernel.
    """

    span_ns: int
    busy_ns: int
    launch_bound_ns: int


def device_time(kernels: Sequence[Kernel]) -> DeviceTime:
    """Return the device time of kernels in order of start; all zero without any.

    A gap before a kernel is launch-bound if the launch had not ended when the device became idle; otherwise the kernel
    was already queued, and the gap is due to the device.
    """
    start_ns = idle_from = kernels[0].start_ns if kernels else 0
    gap_ns = launch_bound_ns = 0
    for kernel in kernels:
        waited_ns = max(0, kernel.start_ns - idle_from)
        gap_ns += waited_ns
        if kernel.launch_end_ns > idle_from:
            launch_bound_ns += waited_ns
        idle_from = max(idle_from, kernel.end_ns)
    return DeviceTime(idle_from - start_ns, idle_from - start_ns - gap_ns, launch_bound_ns)


class Launches:
    """A trace's kernels by launching thread, and which of these launches are in ranges."""

    def __init__(self, trace: Trace) -> None:
        self._by_thread: dict[int, list[Kernel]] = defaultdict(list)
        for kernel in trace.kernels:
            if kernel.launch_thread != UNKNOWN_THREAD:
                self._by_thread[kernel.launch_thread].append(kernel)
        ranges: dict[int, list[Range]] = defaultdict(list)
        for time_range in trace.ranges:
            if not time_range.domain:
                ranges[time_range.thread].append(time_range)
        self._uncovered: dict[int, list[Kernel]] = {}
        for thread, kernels in self._by_thread.items():
            kernels.sort(key=lambda kernel: kernel.launch_start_ns)
            self._uncovered[thread] = _outside(kernels, ranges[thread])

    def within(self, time_range: Range) -> list[Kernel]:
        """Return the kernels of the range, in order of start."""
        launched = _between(self._by_thread.get(time_range.thread, []), time_range)
        process = process_and_thread(time_range.thread)[0]
        for thread, kernels in self._uncovered.items():
            if thread != time_range.thread and process_and_thread(thread)[0] == process:
                launched += _between(kernels, time_range)
        return sorted(launched, key=lambda kernel: (kernel.start_ns, kernel.end_ns))


def _between(kernels: Sequence[Kernel], time_range: Range) -> list[Kernel]:
    """Return the kernels (in order of launch) whose launch began within the range."""
    first = bisect_left(kernels, time_range.start_ns, key=lambda kernel: kernel.launch_start_ns)
    last = bisect_right(kernels, time_range.end_ns, key=lambda kernel: kernel.launch_start_ns)
    return list(kernels[first:last])


def _outside(kernels: Sequence[Kernel], ranges: Sequence[Range]) -> list[Kernel]:
    """Return the kernels, in order of launch, whose launch began in none of the ranges."""
    waiting = sorted(ranges, key=lambda time_range: time_range.start_ns, reverse=True)
    uncovered, covered_until = [], -1
    for kernel in kernels:
        while waiting and waiting[-1].start_ns <= kernel.launch_start_ns:
            covered_until = max(covered_until, waiting.pop().end_ns)
        if kernel.launch_start_ns > covered_until:
            uncovered.append(kernel)
    return uncovered
