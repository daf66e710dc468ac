"""Peak memory on the CPU against sizes known by hand, CUDA's against a stand-in; the texts of out-of-memory errors."""

import gc

import numpy as np
import pytest
import torch

from perfscribe.instruments.memory import PeakMemory, is_oom, parse_oom

MIB = 2**20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8)


def above_before(peak):
    """Peak and end relative to what was allocated at entry, in MiB."""
    return tuple(
        (at - peak.allocated_before_bytes) / MIB for at in (peak.peak_allocated_bytes, peak.allocated_after_bytes)
    )


def test_peak_is_the_most_at_once_not_the_sum():
    with PeakMemory("cpu") as peak:
        first = block(3)
        del first
        second = block(2)
        third = block(4)
        del second
    assert above_before(peak) == (6.0, 4.0)
    assert peak.peak_reserved_bytes is None
    assert third.numel() == 4 * MIB


def test_each_mark_ends_a_segment_with_a_peak_of_its_own():
    with PeakMemory("cpu") as peak:
        first = block(3)
        block(4)
        peak.mark("first")
        del first
        held = block(1)
        peak.mark("second")
    before = peak.allocated_before_bytes
    assert [(name, (of_segment - before) / MIB) for name, of_segment in peak.peaks] == [("first", 7.0), ("second", 3.0)]
    assert {name: (at - before) / MIB for name, at in peak.marks.items()} == {"first": 3.0, "second": 1.0}
    assert above_before(peak) == (7.0, 1.0) and held.numel() == MIB


def test_what_was_there_before_counts_once_and_its_end_is_seen():
    gc.collect()
    with PeakMemory("cpu") as first:
        held = block(5)
        weight = torch.nn.Parameter(torch.ones(MIB))
        (weight * 2).sum().backward()
    view = held[: 2 * MIB].view(-1, 2)
    with PeakMemory("cpu") as second:
        del held, view
        weight.grad = None  # 4 MiB, which the parameter alone held
        block(3)
    assert second.allocated_before_bytes == first.allocated_after_bytes
    assert above_before(second) == (0.0, -9.0)


def test_a_tensor_without_a_storage_is_passed_over():
    sparse = torch.eye(3).to_sparse()  # as gradients of Embedding(sparse=True) are
    with PeakMemory("cpu") as peak:
        held = block(3)
    assert above_before(peak) == (3.0, 3.0)
    assert sparse.is_sparse and held.numel() == 3 * MIB


def test_cuda_counters_are_reset_and_read(monkeypatch):
    log = []
    allocated = iter([100, 300, 200])
    for name, answer in (
        ("synchronize", lambda device: log.append("synchronise")),
        ("reset_peak_memory_stats", lambda device: log.append("reset")),
        ("memory_allocated", lambda device: next(allocated)),
        ("max_memory_allocated", lambda device: log.append("peak") or 400),
        ("max_memory_reserved", lambda device: 512),
    ):
        monkeypatch.setattr(torch.cuda, name, answer)
    with PeakMemory("cuda:0") as peak:
        log.append("body")
        peak.mark("before_backward")
    assert log == ["synchronise", "reset", "body", "peak", "reset", "peak"]
    assert peak.values() == {
        "allocated_before_bytes": 100,
        "before_backward_bytes": 300,
        "allocated_after_bytes": 200,
        "peak_allocated_bytes": 400,
        "peak_reserved_bytes": 512,
        "memory_counter": "CUDA caching allocator",
    }


CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 139.72 GiB of which 512.00 MiB "
    "is free. Process 7 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has 138.22 GiB memory "
    "in use. 130.00 GiB allowed; Of the allocated memory 137.00 GiB is allocated by PyTorch, and 0 bytes is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
)


def test_cuda_text_gives_all_three_sizes():
    try:
        raise ValueError("the compiled graph failed") from torch.OutOfMemoryError(CUDA_TEXT)
    except ValueError as caught:  # raised from it counts, too
        error = caught
    assert is_oom(error)
    assert parse_oom(error) == {
        "requested_bytes": int(20.5 * 2**30),
        "free_bytes": 512 * MIB,
        "total_bytes": round(139.72 * 2**30),
    }


def test_real_errors_of_the_cpu_allocators():
    with pytest.raises(RuntimeError) as torch_error:
        torch.empty(2**52, dtype=torch.uint8)
    with pytest.raises(MemoryError) as numpy_error:
        np.zeros(2**50)
    for caught, requested in ((torch_error, 2**52), (numpy_error, 2**53)):
        assert is_oom(caught.value)
        assert parse_oom(caught.value) == {"requested_bytes": requested, "free_bytes": None, "total_bytes": None}
    assert parse_oom(RuntimeError(CPU_TEXT))["requested_bytes"] == 2**52


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("out of memory for d_model=2560? see the memory table"), False),
        (RuntimeError("last cell said: CUDA out of memory. Tried to allocate 20.00 GiB."), False),
        (ValueError("CUDA out of memory."), False),
    ],
)
def test_other_ways_of_running_out_and_errors_that_merely_speak_of_memory(error, counts):
    assert is_oom(error) == counts
    assert parse_oom(error) == {"requested_bytes": None, "free_bytes": None, "total_bytes": None}
