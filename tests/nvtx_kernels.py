"""Computes from a trace what `nsys stats -r nvtx_kern_sum` prints, to compare our reader of exports with nsys's.

A kernel belongs to every range that encloses its launch call (ends included) on the same thread; so it may count for
several ranges, and twice for nested ranges of one name. Copies and memsets are omitted. Kernels that no range encloses
are in rows without a range. torch's backward pass on a GPU launches from a separate thread, so its kernels are in no
range of the main thread (torch.autograd.set_multithreading_enabled(False) keeps it there).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

from perfscribe.instruments.profiling.trace import KERNEL, UNKNOWN_THREAD, Kernel, Range, Trace, process_and_thread

TIMES = ("Total Time (ns)", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")
COLUMNS = ("NVTX Range", "Style", "PID", "TID", "NVTX Inst", "Kern Inst", *TIMES, "Kernel Name")


def nvtx_kernel_summary(trace: Trace) -> list[tuple[str, ...]]:
    """Return one row, in COLUMNS, per range, thread and kernel; in nsys's order: range, thread, total time descending.

    Times in ns as nsys prints them: averages with one decimal, sample standard deviation. Range names have the domain
    before a colon, and no colon for the default domain (nsys 2023.4; later versions print only the colon). The order is
    that of later versions.
    """
    groups: dict[tuple[str, str, str, int, str], list[tuple[int, Kernel, int]]] = defaultdict(list)
    for number, kernel, position, time_range in _pairs(trace):
        place = (time_range.domain, time_range.name, time_range.style) if time_range else ("", "", "")
        groups[(*place, kernel.launch_thread, kernel.name)].append((number, kernel, position))
    rows = []
    for (domain, name, style, thread, kernel_name), members in groups.items():
        times = [kernel.duration_ns for _, kernel, _ in members]
        process = process_and_thread(thread)
        order = (style != "", f"{domain}:{name}", process, -sum(times), style, kernel_name)
        row = (
            f"{domain}:{name}" if domain else name,
            style,
            *(("", "") if thread == UNKNOWN_THREAD else process),
            len({position for *_, position in members if position >= 0}),
            len({number for number, *_ in members}),
            sum(times),
            _one_decimal(sum(times) / len(times)),
            _one_decimal(statistics.median(times)),
            min(times),
            max(times),
            _one_decimal(statistics.stdev(times) if len(times) > 1 else 0.0),
            kernel_name,
        )
        rows.append((order, tuple(map(str, row))))
    return [row for _, row in sorted(rows)]


def _pairs(trace: Trace) -> Iterator[tuple[int, Kernel, int, Range | None]]:
    """Yield every kernel with each range around its launch, or with None; each with its index (-1: no range)."""
    for number, kernel in enumerate(trace.kernels):
        around = [
            (position, time_range)
            for position, time_range in enumerate(trace.ranges)
            if time_range.thread == kernel.launch_thread
            and time_range.start_ns <= kernel.launch_start_ns
            and kernel.launch_end_ns <= time_range.end_ns
        ]
        if kernel.kind == KERNEL:
            yield from ((number, kernel, position, time_range) for position, time_range in around or [(-1, None)])


def _one_decimal(value: float) -> str:
    """Round halves away from zero, like SQLite."""
    return str(Decimal(value).quantize(Decimal("0.1"), ROUND_HALF_UP))
