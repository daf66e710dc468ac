"""Peak memory on the CPU against sizes known by hand, CUDA's against a stand-in; the texts of out-of-memory errors."""

import numpy as np
import pytest
import torch

from perfscribe.instruments.memory import PeakMemory, is_oom, parse_oom

MIB = 2**20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8)


def test_each_mark_ends_a_segment_with_the_most_at_once_as_its_peak():
    sparse = torch.eye(3).to_sparse()  # has no storage, as gradients of Embedding(sparse=True)
    with PeakMemory("cpu") as peak:
        first = block(3)
        block(4)
        peak.mark("first")
        del first
        held = block(1)
        peak.mark("second")
    before = peak.allocated_before_bytes
    assert [(name, (at - before) / MIB) for name, at in peak.peaks] == [("first", 7.0), ("second", 3.0)]
    assert {name: (at - before) / MIB for name, at in peak.marks.items()} == {"first": 3.0, "second": 1.0}
    assert (peak.peak_allocated_bytes - before, peak.allocated_after_bytes - before) == (7 * MIB, MIB)
    assert peak.peak_reserved_bytes is None and held.numel() == MIB and sparse.is_sparse


def test_what_was_there_before_counts_once_and_its_end_is_seen():
    with PeakMemory("cpu") as first:
        held = block(5)
        weight = torch.nn.Parameter(torch.ones(MIB))
        (weight * 2).sum().backward()
    view = held[: 2 * MIB].view(-1, 2)
    with PeakMemory("cpu") as second:
        del held, view
        weight.grad = None  # 4 MiB, which the parameter alone held
        block(3)
    assert second.allocated_before_bytes == second.peak_allocated_bytes == first.allocated_after_bytes
    assert second.allocated_before_bytes - second.allocated_after_bytes == 9 * MIB


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


def sizes(requested=None, free=None, total=None):
    return {"requested_bytes": requested, "free_bytes": free, "total_bytes": total}


def test_cuda_text_gives_all_three_sizes_also_of_a_cause():
    text = "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 139.72 GiB of which "
    error = ValueError("the compiled graph failed")
    error.__cause__ = torch.OutOfMemoryError(text + "512.00 MiB is free. Process 7 has 1.00 GiB memory in use.")
    assert is_oom(error) and parse_oom(error) == sizes(int(20.5 * 2**30), 512 * MIB, round(139.72 * 2**30))


@pytest.mark.parametrize(
    ("allocate", "requested"),
    [(lambda: torch.empty(2**52, dtype=torch.uint8), 2**52), (lambda: np.zeros(2**50), 2**53)],
)
def test_real_errors_of_the_cpu_allocators(allocate, requested):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    assert is_oom(caught.value) and parse_oom(caught.value) == sizes(requested)


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
    assert is_oom(error) == counts and parse_oom(error) == sizes()
