"""Summaries of a range: attribution, busy time and gaps; and the summary by range that nsys prints."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels import nvtx_kernel_summary

from perfscribe.instruments.profiling.families import family, require_communication
from perfscribe.instruments.profiling.summary import DeviceTime, Launches, device_time
from perfscribe.instruments.profiling.trace import UNKNOWN_THREAD, Kernel, Range, Trace, thread_key

GEMM = "ampere_sgemm_128x64_tn"
MAIN, AUTOGRAD, OTHER = thread_key(1, 1), thread_key(1, 2), thread_key(2, 1)


def kernel(launch: int, start: int, duration: int, thread: int = MAIN, name: str = GEMM, **more: object) -> Kernel:
    return Kernel(name, start, start + duration, launch, launch + 5, thread, **more)


def trace(kernels: list[Kernel], *ranges: Range) -> Trace:
    return Trace("nsys 1", sorted(kernels, key=lambda one: one.start_ns), sorted(ranges, key=lambda r: r.start_ns))


def launched(made: Trace, one: Range) -> list[int]:
    return [kernel.launch_start_ns for kernel in Launches(made).within(one)]


def test_backward_holds_what_its_thread_of_autograd_launched() -> None:
    step, backward = Range("step", 0, 900, MAIN), Range("backward", 100, 500, MAIN)
    checkpoint = Range("forward", 300, 340, AUTOGRAD)  # recomputed within backward
    librarys = Range("ncclGroup", 0, 900, AUTOGRAD, domain="NCCL")  # takes nothing out of backward
    kernels = [kernel(50, 60, 5), kernel(200, 210, 5, AUTOGRAD), kernel(310, 320, 5, AUTOGRAD), kernel(600, 610, 5)]
    strangers = [kernel(200, 205, 5, OTHER), kernel(250, 255, 5, UNKNOWN_THREAD)]
    made = trace([*kernels, *strangers], step, backward, checkpoint, librarys)
    assert launched(made, backward) == [200]
    assert launched(made, checkpoint) == [310]
    assert launched(made, step) == [50, 200, 600]


def test_gaps_and_what_the_device_waited_for() -> None:
    kernels = [
        kernel(0, 100, 50),  # to 150
        kernel(10, 120, 100, stream=8),  # overlaps the first, to 220
        kernel(20, 260, 40),  # was queued: the device's own gap 220 to 260
        kernel(298, 320, 10),  # its launch ended at 303, after 300: the host's
        kernel(400, 410, 10),  # launched long after: the host's
    ]
    assert device_time(kernels) == DeviceTime(span_ns=320, busy_ns=180, launch_bound_ns=20 + 80)
    assert device_time([]) == DeviceTime(0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(1, 60)), max_size=12))
def test_busy_time_is_the_union_of_the_kernels(times: list[tuple[int, int, int]]) -> None:
    made = trace([kernel(launch, launch + wait, duration) for launch, wait, duration in times])
    found = device_time(made.kernels)
    busy = {moment for one in made.kernels for moment in range(one.start_ns, one.end_ns)}
    assert found.busy_ns == len(busy) and found.span_ns == (max(busy) - min(busy) + 1 if busy else 0)


def test_halves_are_rounded_as_nsys_does() -> None:
    durations = (1, 1, 1, 2)  # mean 1.25, which Python's round would make 1.2
    made = trace([kernel(n * 10, n * 10, duration) for n, duration in enumerate(durations)], Range("r", 0, 99, MAIN))
    (row,) = nvtx_kernel_summary(made).itertuples(index=False, name=None)
    assert row == ("r", "PushPop", "1", "1", "1", "4", "5", "1.3", "1.0", "1", "2", "0.5", GEMM)


with open(Path(__file__).parents[1] / "fixtures" / "kernel_names.csv", encoding="utf-8", newline="") as stream:
    NAMES = [(row["name"], row["family"]) for row in csv.DictReader(stream)]


def test_names_have_their_families() -> None:
    assert [(name, family(name)) for name, _ in NAMES] == NAMES


def of_ranks(*names: str) -> Trace:
    threads = [thread_key(100 + n, 1) for n in range(len(names))]
    return Trace("nsys 1", [Kernel(name, 0, 1, 0, 1, t) for name, t in zip(names, threads, strict=True)], [])


def test_a_trace_of_several_ranks_holds_communication() -> None:
    require_communication(of_ranks("ampere_sgemm_128x64_tn"), ranks=1)
    require_communication(of_ranks("ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), ranks=2)
    expected = "2 ranks without a communication kernel: 1 kernels of 1 processes by nsys 1"
    with pytest.raises(ValueError, match=expected):
        require_communication(of_ranks("ampere_sgemm_128x64_tn"), ranks=2)
