"""Summaries of a range: attribution, busy time and gaps; a trace that lacks communication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscribe.instruments.profiling.families import require_communication
from perfscribe.instruments.profiling.summary import DeviceTime, Launches, device_time
from perfscribe.instruments.profiling.trace import UNKNOWN_THREAD, Kernel, Range, Trace, thread_key

GEMM = "ampere_sgemm_128x64_tn"
MAIN, AUTOGRAD, OTHER = thread_key(1, 1), thread_key(1, 2), thread_key(2, 1)


def kernel(launch, start, duration, thread=MAIN, **more):
    return Kernel(GEMM, start, start + duration, launch, launch + 5, thread, **more)


def test_backward_holds_what_its_thread_of_autograd_launched() -> None:
    step, backward = Range("step", 0, 900, MAIN), Range("backward", 100, 500, MAIN)
    checkpoint = Range("forward", 300, 340, AUTOGRAD)  # recomputed within backward
    librarys = Range("ncclGroup", 0, 900, AUTOGRAD, domain="NCCL")  # takes nothing out of backward
    kernels = [kernel(50, 60, 5), kernel(200, 210, 5, AUTOGRAD), kernel(310, 320, 5, AUTOGRAD), kernel(600, 610, 5)]
    kernels[1:1] = [kernel(200, 205, 5, OTHER)]
    kernels[3:3] = [kernel(250, 255, 5, UNKNOWN_THREAD)]
    launches = Launches(Trace("nsys 1", kernels, [step, librarys, backward, checkpoint]))
    for time_range, expected in ((backward, [200]), (checkpoint, [310]), (step, [50, 200, 600])):
        assert [launched.launch_start_ns for launched in launches.within(time_range)] == expected


def test_gaps_and_what_the_device_waited_for() -> None:
    kernels = [
        kernel(0, 100, 50),  # to 150
        kernel(10, 120, 100, stream=8),  # overlaps the first, to 220
        kernel(20, 260, 40),  # was queued: the device's own gap 220 to 260
        kernel(298, 320, 10),  # its launch ended at 303, after 300: the host's
        kernel(400, 410, 10),  # launched long after: the host's
    ]
    assert device_time(kernels) == DeviceTime(span_ns=320, busy_ns=180, launch_bound_ns=20 + 80)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(1, 60)), max_size=12))
def test_busy_time_is_the_union_of_the_kernels(times: list[tuple[int, int, int]]) -> None:
    kernels = [kernel(launch, launch + wait, duration) for launch, wait, duration in times]
    device = device_time(sorted(kernels, key=lambda each: each.start_ns))
    busy = {moment for each in kernels for moment in range(each.start_ns, each.end_ns)}
    assert device.busy_ns == len(busy) and device.span_ns == (max(busy) - min(busy) + 1 if busy else 0)


def test_a_trace_of_several_ranks_holds_communication() -> None:
    compute, communication = kernel(0, 0, 1), Kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 1, 0, 1, OTHER)
    require_communication(Trace("nsys 1", [compute], []), ranks=1)
    require_communication(Trace("nsys 1", [compute, communication], []), ranks=2)
    with pytest.raises(ValueError, match="2 ranks without a communication kernel: 1 kernels of 1 processes by nsys 1"):
        require_communication(Trace("nsys 1", [compute], []), ranks=2)
