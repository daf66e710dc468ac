"""What happened in a range: attribution, busy time and gaps, totals."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_fixture import FOLDER, GEMM, MUL, SOFTMAX

from perfscribe.instruments.profiling import summary
from perfscribe.instruments.profiling.families import by_family
from perfscribe.instruments.profiling.nsys_export import read_sqlite
from perfscribe.instruments.profiling.nvtx_kernels import COLUMNS, nvtx_kernel_summary, write_csv
from perfscribe.instruments.profiling.summary import Gap
from perfscribe.instruments.profiling.trace import COPY, START_END, UNKNOWN_THREAD, Kernel, Range, Trace, thread_key

MAIN, AUTOGRAD, OTHER = thread_key(1, 1), thread_key(1, 2), thread_key(2, 1)


def kernel(launch: int, start: int, duration: int, thread: int = MAIN, name: str = GEMM, **more: object) -> Kernel:
    return Kernel(name, start, start + duration, launch, launch + 5, thread, **more)


def trace(kernels: list[Kernel], *ranges: Range) -> Trace:
    return Trace("nsys 1", sorted(kernels, key=lambda one: one.start_ns), sorted(ranges, key=lambda r: r.start_ns))


def test_the_committed_export() -> None:
    found = summary.occurrences(read_sqlite(FOLDER / "synthetic.sqlite"), "forward")
    assert [one.host_ns for one in found] == [690, 690]
    first = found[0]
    assert [one.name for one in first.kernels] == [GEMM, GEMM, SOFTMAX, MUL, MUL]
    assert first.kernel_ns == 101 + 104 + 50 + 7 + 8 and first.span_ns == 438 - 60
    assert first.busy_ns + first.gap_ns == first.span_ns and first.busy_ns == 270 and first.kernels[0].start_ns == 1060
    assert [(t.name, t.count, t.time_ns) for t in first.by_name()] == [(GEMM, 2, 205), (SOFTMAX, 1, 50), (MUL, 2, 15)]
    families = [(t.name, t.count) for t in by_family(first.kernels)]
    assert families == [("gemm", 2), ("softmax", 1), ("elementwise", 2)]


def test_backward_holds_what_its_thread_of_autograd_launched() -> None:
    step, backward = Range("step", 0, 900, MAIN), Range("backward", 100, 500, MAIN)
    checkpoint = Range("forward", 300, 340, AUTOGRAD)  # recomputed within backward
    kernels = [kernel(50, 60, 5), kernel(200, 210, 5, AUTOGRAD), kernel(310, 320, 5, AUTOGRAD), kernel(600, 610, 5)]
    strangers = [kernel(200, 205, 5, OTHER), kernel(250, 255, 5, UNKNOWN_THREAD)]
    made = trace([*kernels, *strangers], step, backward, checkpoint)
    assert [one.launch_start_ns for one in summary.occurrence(made, backward).kernels] == [200]
    assert [one.launch_start_ns for one in summary.occurrence(made, checkpoint).kernels] == [310]
    assert [one.launch_start_ns for one in summary.occurrence(made, step).kernels] == [50, 200, 600]


def test_a_launch_on_the_edge_is_inside() -> None:
    made = trace([kernel(100, 110, 1), kernel(200, 210, 1), kernel(99, 300, 1), kernel(201, 310, 1)])
    found = summary.occurrence(made, Range("r", 100, 200, MAIN))
    assert [one.launch_start_ns for one in found.kernels] == [100, 200]


def test_gaps_and_what_the_device_waited_for() -> None:
    kernels = [
        kernel(0, 100, 50),  # to 150
        kernel(10, 120, 100, stream=8),  # overlaps the first, to 220
        kernel(20, 260, 40),  # was queued: the device's own gap 220 to 260
        kernel(298, 320, 10),  # its launch ended at 303, after 300: the host's
        kernel(400, 410, 10),  # launched long after: the host's
    ]
    found = summary.occurrence(trace(kernels, Range("r", 0, 1000, MAIN)), Range("r", 0, 1000, MAIN))
    assert found.gaps == (Gap(220, 260, False), Gap(300, 320, True), Gap(330, 410, True))
    assert (found.span_ns, found.gap_ns, found.busy_ns) == (320, 140, 180)
    assert found.launch_bound_ns == 100 and found.launch_bound_share == pytest.approx(100 / 320)
    assert found.kernel_ns == 210  # more than busy: two ran at once


def test_a_range_without_kernels() -> None:
    found = summary.occurrence(trace([], Range("r", 5, 9, MAIN)), Range("r", 5, 9, MAIN))
    assert (found.host_ns, found.span_ns, found.busy_ns, found.gap_ns, found.launch_bound_share) == (4, 0, 0, 0, 0.0)
    assert found.by_name() == [] and by_family(found.kernels) == []


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(1, 60)), max_size=12))
def test_busy_time_is_the_union_of_the_kernels(times: list[tuple[int, int, int]]) -> None:
    kernels = [kernel(launch, launch + wait, duration) for launch, wait, duration in times]
    found = summary.occurrence(trace(kernels, Range("r", 0, 300, MAIN)), Range("r", 0, 300, MAIN))
    busy = {moment for one in kernels for moment in range(one.start_ns, one.end_ns)}
    assert found.busy_ns == len(busy) and found.span_ns == (max(busy) - min(busy) + 1 if busy else 0)
    assert found.kernel_ns == sum(total.time_ns for total in found.by_name())
    assert sum(total.count for total in by_family(found.kernels)) == len(kernels)


def test_library_domains_are_no_ranges_of_the_program() -> None:
    ours, librarys = Range("step", 0, 50, MAIN), Range("step", 60, 90, MAIN, domain="NCCL")
    assert [one.range for one in summary.occurrences(trace([], ours, librarys), "step")] == [ours]
    wide = Range("ncclGroup", 0, 100, AUTOGRAD, domain="NCCL")  # does not take autograd's kernels out of backward
    found = summary.occurrence(trace([kernel(10, 20, 5, AUTOGRAD)], ours, wide), ours)
    assert len(found.kernels) == 1


# --- the summary of nsys (tests/test_profiling_nsys.py compares it with nsys itself) ------------------------------


def test_halves_are_rounded_as_nsys_does() -> None:
    durations = (1, 1, 1, 2)  # mean 1.25, which Python's round would make 1.2
    made = trace([kernel(n * 10, n * 10, duration) for n, duration in enumerate(durations)], Range("r", 0, 99, MAIN))
    (row,) = nvtx_kernel_summary(made)
    assert dict(zip(COLUMNS, row, strict=True)) == {
        "NVTX Range": "r",
        "Style": "PushPop",
        "PID": "1",
        "TID": "1",
        "NVTX Inst": "1",
        "Kern Inst": "4",
        "Total Time (ns)": "5",
        "Avg (ns)": "1.3",
        "Med (ns)": "1.0",
        "Min (ns)": "1",
        "Max (ns)": "2",
        "StdDev (ns)": "0.5",
        "Kernel Name": GEMM,
    }


def test_copies_are_left_out_and_styles_kept_apart() -> None:
    ranges = [Range("r", 0, 99, MAIN), Range("r", 0, 99, MAIN, START_END)]
    made = trace([kernel(10, 20, 5), kernel(30, 40, 7, name="[CUDA memset]", kind=COPY)], *ranges)
    assert [row[1] for row in nvtx_kernel_summary(made)] == ["PushPop", "StartEnd"]


def test_the_csv_has_names_with_commas(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.csv"
    write_csv(nvtx_kernel_summary(trace([kernel(10, 20, 5, name=MUL)])), path)
    assert path.read_text().splitlines() == [",".join(COLUMNS), f',,1,1,0,1,5,5.0,5.0,5,5,0.0,"{MUL}"']


def test_a_hundred_thousand_kernels_take_seconds() -> None:
    kernels = [kernel(n * 10, n * 10 + 7, 5) for n in range(100_000)]
    steps = [Range("step", n * 10_000, n * 10_000 + 9_999, MAIN) for n in range(100)]
    layers = [Range(f"layer {n % 10}", n * 1000, n * 1000 + 999, MAIN) for n in range(1000)]
    made = trace(kernels, *steps, *layers)
    started = time.process_time()
    assert len(nvtx_kernel_summary(made)) == 11
    assert sum(len(one.kernels) for one in summary.occurrences(made, "step")) == 100_000
    assert time.process_time() - started < 10
