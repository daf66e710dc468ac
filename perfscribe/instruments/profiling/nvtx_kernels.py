"""The summary of kernels by NVTX range that `nsys stats -r nvtx_kern_sum` prints, made from a trace.

A kernel belongs to every range that encloses the call which launched it, ends included, on the thread of that call; so
it may count for several ranges, and twice for ranges of one name within each other. Copies and memsets are left out.
Kernels that no range encloses stand in rows without a range. The torch backward pass on a GPU launches from a thread of
its own, so that its kernels are in no range of the main thread (torch.autograd.set_multithreading_enabled(False)
keeps it there).
"""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from perfscribe.base import files
from perfscribe.instruments.profiling.trace import KERNEL, UNKNOWN_THREAD, Kernel, Range, Trace, process_and_thread

COLUMNS = (
    "NVTX Range",
    "Style",
    "PID",
    "TID",
    "NVTX Inst",
    "Kern Inst",
    "Total Time (ns)",
    "Avg (ns)",
    "Med (ns)",
    "Min (ns)",
    "Max (ns)",
    "StdDev (ns)",
    "Kernel Name",
)
Row = tuple[str, ...]
# Domain and name of the range, its style, the thread; the kernel's name.
_Key = tuple[str, str, str, int, str]


@dataclass
class _Group:
    ranges: set[int] = field(default_factory=set)
    kernels: set[int] = field(default_factory=set)
    durations_ns: list[int] = field(default_factory=list)


def nvtx_kernel_summary(trace: Trace) -> list[Row]:
    """One row, in COLUMNS, for each range, thread and kernel; in nsys's order: range, thread, total time descending.

    Times in ns as nsys prints them: averages with one decimal, the deviation that of a sample. The names of ranges have
    the domain before a colon, and none for the default domain (nsys 2023.4; later versions print the colon alone). The
    order is that of later versions.
    """
    groups: dict[_Key, _Group] = defaultdict(_Group)
    for number, kernel, position, one in _pairs(trace):
        place = (one.domain, one.name, one.style) if one else ("", "", "")
        group = groups[(*place, kernel.launch_thread, kernel.name)]
        group.kernels.add(number)
        group.durations_ns.append(kernel.duration_ns)
        if one is not None:
            group.ranges.add(position)
    return [_row(key, groups[key]) for key in sorted(groups, key=lambda key: _order(key, groups[key]))]


def _pairs(trace: Trace) -> Iterator[tuple[int, Kernel, int, Range | None]]:
    """Every kernel with each range around its launch, or with None; both also by number."""
    ranges: dict[int, list[tuple[int, Range]]] = defaultdict(list)
    for position, one in enumerate(trace.ranges):
        ranges[one.thread].append((position, one))
    launched: dict[int, list[tuple[int, Kernel]]] = defaultdict(list)
    for number, kernel in enumerate(trace.kernels):
        if kernel.kind == KERNEL:
            launched[kernel.launch_thread].append((number, kernel))
    for thread, kernels in launched.items():
        waiting = sorted(ranges[thread], key=lambda pair: pair[1].start_ns, reverse=True)
        open_ranges: list[tuple[int, Range]] = []
        for number, kernel in sorted(kernels, key=lambda pair: pair[1].launch_start_ns):
            while waiting and waiting[-1][1].start_ns <= kernel.launch_start_ns:
                open_ranges.append(waiting.pop())
            open_ranges = [pair for pair in open_ranges if pair[1].end_ns >= kernel.launch_start_ns]
            around = [pair for pair in open_ranges if pair[1].end_ns >= kernel.launch_end_ns]
            yield from ((number, kernel, position, one) for position, one in around)
            if not around:
                yield number, kernel, -1, None


def _order(key: _Key, group: _Group) -> tuple[object, ...]:
    domain, name, style, thread, kernel = key
    return style != "", f"{domain}:{name}", process_and_thread(thread), -sum(group.durations_ns), style, kernel


def _row(key: _Key, group: _Group) -> Row:
    domain, name, style, thread, kernel = key
    times = group.durations_ns
    numbers = ("", "") if thread == UNKNOWN_THREAD else tuple(map(str, process_and_thread(thread)))
    return (
        f"{domain}:{name}" if domain else name,
        style,
        *numbers,
        str(len(group.ranges)),
        str(len(group.kernels)),
        str(sum(times)),
        _one_decimal(sum(times) / len(times)),
        _one_decimal(statistics.median(times)),
        str(min(times)),
        str(max(times)),
        _one_decimal(statistics.stdev(times) if len(times) > 1 else 0.0),
        kernel,
    )


def _one_decimal(value: float) -> str:
    """Halves away from zero, as SQLite rounds."""
    return str(Decimal(value).quantize(Decimal("0.1"), ROUND_HALF_UP))


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the summary with its header; the file is whole or not there."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    files.write_text(path, text.getvalue())
