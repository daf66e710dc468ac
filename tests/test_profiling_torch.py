"""The torch profiler in place of nsys, the ranges that it sees, and attention with ranges."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.instruments.profiling import ranges, summary
from perfscribe.instruments.profiling.annotated_attention import annotated_scaled_dot_product_attention
from perfscribe.instruments.profiling.families import family
from perfscribe.instruments.profiling.torch_profiler import read_chrome_trace, recording
from perfscribe.instruments.profiling.trace import COPY, KERNEL, MEMSET, OPERATOR, UNKNOWN_THREAD, Trace, thread_key

T = TypeVar("T")
# As torch writes them for one CUDA step; times in µs, with a base far from zero.
BASE = 4320306453638.0
CUDA_EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": BASE, "args": {"name": "python"}},
    {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 7, "tid": 7, "ts": BASE + 1, "dur": 99.5},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": BASE + 2, "dur": 9.0},
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 7,
        "tid": 7,
        "ts": BASE + 5,
        "dur": 4.125,
        "args": {"External id": 3, "cbid": 211, "correlation": 3},
    },
    {"ph": "s", "id": 3, "pid": 7, "tid": 7, "ts": BASE + 5, "cat": "ac2g", "name": "ac2g"},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "ampere_sgemm_128x64_tn",
        "pid": 0,
        "tid": 7,
        "ts": BASE + 20.123,
        "dur": 10.5,
        "args": {"External id": 3, "device": 0, "context": 1, "stream": 7, "correlation": 3},
    },
    {
        "ph": "X",
        "cat": "cuda_driver",
        "name": "cuLaunchKernelEx",
        "pid": 7,
        "tid": 9,
        "ts": BASE + 40,
        "dur": 2.0,
        "args": {"correlation": 4},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "triton_poi_fused_add_0",
        "pid": 0,
        "tid": 7,
        "ts": BASE + 60,
        "dur": 1.0,
        "args": {"device": 0, "stream": 13, "correlation": 4},
    },
    {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "pid": 0,
        "tid": 7,
        "ts": BASE + 70,
        "dur": 2.0,
        "args": {"device": 0, "stream": 7, "correlation": 99},
    },
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": BASE + 80, "dur": 1.0},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7, "ts": BASE + 20, "dur": 61.0},
]


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events}))
    return path


def operator(name: str, start: int, end: int, thread: int = 7) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 7,
        "tid": thread,
        "ts": float(start),
        "dur": float(end - start),
    }


def test_kernels_by_the_calls_that_launched_them(tmp_path: Path) -> None:
    trace = read_chrome_trace(write(tmp_path / "t.json", CUDA_EVENTS), "cuda", "2.11.0")
    base = int(BASE) * 1000
    assert trace.tool == "torch profiler 2.11.0" and trace.no_kernels == ""
    gemm, fused, copy, memset = trace.kernels
    assert (gemm.start_ns, gemm.end_ns) == (base + 20_123, base + 30_623)  # exact, though far from zero
    assert (gemm.launch_start_ns, gemm.launch_end_ns) == (base + 5_000, base + 9_125)
    assert gemm.launch_thread == thread_key(7, 7) and (gemm.stream, gemm.device, gemm.kind) == (7, 0, KERNEL)
    assert fused.launch_thread == thread_key(7, 9) and fused.stream == 13
    assert (copy.kind, memset.kind) == (COPY, MEMSET) and copy.launch_thread == memset.launch_thread == UNKNOWN_THREAD
    assert trace.remarks == ["2 kernels without a recorded launch"]
    (step,) = trace.ranges  # that of the host alone
    assert step.duration_ns == 99_500 and step.thread == thread_key(7, 7)
    assert [one.name for one in summary.occurrence(trace, step).kernels] == [gemm.name, fused.name]


def test_operators_that_call_others_count_once(tmp_path: Path) -> None:
    events = [
        operator("aten::linear", 0, 100),  # only calls others
        operator("aten::t", 2, 6),
        operator("aten::addmm", 10, 98),  # copies the bias, then multiplies
        operator("aten::expand", 11, 13),
        operator("aten::copy_", 15, 25),
        operator("autograd::engine::evaluate_function: MmBackward0", 100, 140),
        operator("MmBackward0", 101, 139),
        operator("aten::mm", 105, 135),
        operator("aten::empty", 150, 160),
        operator("aten::sum", 200, 210),  # its only call touches no element
        operator("aten::as_strided", 201, 209),
        operator("aten::add", 300, 310, thread=8),  # at the same time on another thread
        operator("mine::operator", 300, 320),
    ]
    trace = read_chrome_trace(write(tmp_path / "t.json", events), "cpu", "2.13.0")
    assert trace.tool == "torch profiler 2.13.0, operators on the CPU"
    found = [(one.name, one.start_ns // 1000, one.end_ns // 1000) for one in trace.kernels]
    assert found == [
        ("aten::copy_", 15, 25),
        ("aten::addmm", 25, 98),
        ("aten::mm", 105, 135),
        ("aten::sum", 200, 201),
        ("aten::add", 300, 310),
        ("mine::operator", 300, 320),
    ]
    assert {(one.kind, one.launch_start_ns == one.launch_end_ns == one.start_ns) for one in trace.kernels} == {
        (OPERATOR, True)
    }


@pytest.mark.parametrize(
    "content", [None, "text", "[]", '{"traceEvents": [{"ph": "X", "cat": "user_annotation"}]}', "7"]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"t\.json: no trace of the torch profiler \("):
        read_chrome_trace(path, "cpu", "2.13.0")


TRIES = 100


def undisturbed(make: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    """What is made, once it is as it is without other work on this machine; the last where it never is.

    That may hold up an operator between its start and that of the one it calls, which then counts as its own work.
    """
    for _ in range(TRIES):
        made = make()
        if is_so(made):
            break
    return made


def recorded_here() -> Trace:
    """A product, its softmax and a sum, in ranges, on this machine."""
    inputs = torch.randn(64, 64)
    with recording("cpu") as recorded:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = recorded.trace
        with ranges.annotate(ranges.STEP):
            with ranges.annotate(ranges.FORWARD):
                torch.softmax(inputs @ inputs, dim=-1)
            inputs.sum()
    return recorded.trace


def test_a_recording_of_this_machine() -> None:
    def forward_of(trace: Trace) -> Any:
        (forward,) = summary.occurrences(trace, ranges.FORWARD)
        return forward

    trace = undisturbed(recorded_here, lambda trace: len(forward_of(trace).kernels) == 2)
    forward, (step,) = forward_of(trace), summary.occurrences(trace, ranges.STEP)
    assert trace.tool == f"torch profiler {torch.__version__.split('+')[0]}, operators on the CPU"
    assert [one.name for one in forward.kernels] == ["aten::mm", "aten::_softmax"]
    assert "aten::sum" in {one.name for one in step.kernels} and forward.host_ns < step.host_ns
    assert {family(one.name) for one in forward.kernels} == {"gemm", "softmax"}
    assert 0 < step.busy_ns <= step.span_ns <= step.host_ns


def test_a_failing_block_gives_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError), recording("cpu"):
        _ = 1 / 0


# --- ranges ---


class FakeNvtx:
    """Keeps what would be pushed and popped."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def push_range(self, name: str) -> None:
        self.calls.append(f"push {name}")

    def pop_range(self) -> None:
        self.calls.append("pop")


def test_a_range_is_closed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvtx()
    monkeypatch.setattr(ranges, "_nvtx", lambda: fake)
    with pytest.raises(ValueError, match="inside"), ranges.annotate(ranges.STEP), ranges.annotate(ranges.FORWARD):
        raise ValueError("inside")
    assert fake.calls == ["push step", "push forward", "pop", "pop"]


def test_without_the_nvtx_package_ranges_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    ranges._nvtx.cache_clear()
    try:
        assert ranges._nvtx() is None
        with recording("cpu") as recorded, ranges.annotate(ranges.STEP):
            torch.ones(3).add_(1)
        assert [one.name for one in recorded.trace.ranges] == ["step"]
    finally:
        ranges._nvtx.cache_clear()


@pytest.mark.parametrize("masked", [False, True])
def test_annotated_attention_computes_what_eager_attention_does(masked: bool) -> None:
    torch.manual_seed(0)
    shapes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    first = [torch.randn(shape, requires_grad=True) for shape in shapes]
    second = [tensor.detach().clone().requires_grad_() for tensor in first]
    mask = torch.ones(5, 7, dtype=torch.bool).tril() if masked else None
    plain = scaled_dot_product_attention(*first, mask)
    with recording("cpu") as recorded:
        annotated = annotated_scaled_dot_product_attention(*second, mask)
    assert torch.equal(plain, annotated)
    gradient = torch.randn_like(plain)
    plain.backward(gradient)
    annotated.backward(gradient)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]

    def again() -> dict[str, Any]:
        with recording("cpu") as once_more:
            annotated_scaled_dot_product_attention(*first, mask)
        return {one.name: summary.occurrence(once_more.trace, one) for one in once_more.trace.ranges}

    assert [one.name for one in recorded.trace.ranges] == [
        ranges.ATTENTION_SCORES,
        ranges.SOFTMAX,
        ranges.FINAL_MATMUL,
    ]
    found = undisturbed(again, lambda by: [len(by[n].kernels) for n in (ranges.SOFTMAX, ranges.FINAL_MATMUL)] == [1, 1])
    assert list(found) == [ranges.ATTENTION_SCORES, ranges.SOFTMAX, ranges.FINAL_MATMUL]
    assert [family(k.name) for k in found[ranges.SOFTMAX].kernels] == ["softmax"]
    assert [k.name for k in found[ranges.FINAL_MATMUL].kernels] == ["aten::bmm"]
    assert "aten::bmm" in [k.name for k in found[ranges.ATTENTION_SCORES].kernels]
