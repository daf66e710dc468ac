"""The torch profiler in place of nsys, the ranges that it sees, and attention with ranges."""

import json
from pathlib import Path
from typing import Any

import torch

from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.summary import Launches
from perfscribe.instruments.profiling.torch_profiler import read_chrome_trace
from perfscribe.instruments.profiling.trace import COPY, KERNEL, MEMSET, OPERATOR, UNKNOWN_THREAD, Trace, thread_key

BASE = 4320306453638.0  # µs, far from zero, as torch writes it


def event(cat: str, name: str, start: float, dur: float, tid: int = 7, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": dur, "args": args}


def read(folder: Path, events: list[dict[str, Any]], device: str, version: str) -> Trace:
    path = folder / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events}))
    return read_chrome_trace(path, device, version)


def test_kernels_by_the_calls_that_launched_them(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": BASE, "args": {"name": "python"}},
        event("user_annotation", "step", BASE + 1, 99.5),
        event("cpu_op", "aten::mm", BASE + 2, 9.0),
        event("cuda_runtime", "cudaLaunchKernel", BASE + 5, 4.125, correlation=3),
        {"ph": "s", "id": 3, "pid": 7, "tid": 7, "ts": BASE + 5, "cat": "ac2g", "name": "ac2g"},
        event("kernel", "ampere_sgemm_128x64_tn", BASE + 20.123, 10.5, device=0, stream=7, correlation=3),
        event("cuda_driver", "cuLaunchKernelEx", BASE + 40, 2.0, 9, correlation=4),
        event("kernel", "triton_poi_fused_add_0", BASE + 60, 1.0, device=0, stream=13, correlation=4),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", BASE + 70, 2.0, stream=7, correlation=99),
        event("gpu_memset", "Memset (Device)", BASE + 80, 1.0),
        event("gpu_user_annotation", "step", BASE + 20, 61.0),
    ]
    trace = read(tmp_path, events, "cuda", "2.11.0")
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
    assert [one.name for one in Launches(trace).within(step)] == [gemm.name, fused.name]


def test_operators_that_call_others_count_once(tmp_path: Path) -> None:
    spans = [
        ("aten::linear", 0, 100),  # only calls others
        ("aten::t", 2, 6),
        ("aten::addmm", 10, 98),  # copies the bias, then multiplies
        ("aten::expand", 11, 13),
        ("aten::copy_", 15, 25),
        ("autograd::engine::evaluate_function: MmBackward0", 100, 140),
        ("MmBackward0", 101, 139),
        ("aten::mm", 105, 135),
        ("aten::empty", 150, 160),
        ("aten::sum", 200, 210),  # its only call touches no element
        ("aten::as_strided", 201, 209),
        ("mine::operator", 300, 320),
    ]
    events = [event("cpu_op", name, start, end - start) for name, start, end in spans]
    events.append(event("cpu_op", "aten::add", 300, 10, tid=8))  # at the same time on another thread
    trace = read(tmp_path, events, "cpu", "2.13.0")
    assert trace.tool == "torch profiler 2.13.0, operators on the CPU"
    assert [(one.name, one.start_ns // 1000, one.end_ns // 1000) for one in trace.kernels] == [
        ("aten::copy_", 15, 25),
        ("aten::addmm", 25, 98),
        ("aten::mm", 105, 135),
        ("aten::sum", 200, 201),
        ("aten::add", 300, 310),
        ("mine::operator", 300, 320),
    ]
    assert {one.kind for one in trace.kernels} == {OPERATOR}
    assert all(one.launch_start_ns == one.launch_end_ns == one.start_ns for one in trace.kernels)


def test_an_operator_that_waits_for_a_core_is_no_work_of_its_own(tmp_path: Path) -> None:
    calls = [(0, 11), (100, 111), (200, 260)]  # the thread of the last call was stopped for 49 µs
    events = [event("cpu_op", "aten::softmax", start, end - start) for start, end in calls]
    events += [event("cpu_op", "aten::_softmax", start + 1, 9) for start, _ in calls]
    trace = read(tmp_path, events, "cpu", "2.13.0")
    assert [kernel.name for kernel in trace.kernels] == ["aten::_softmax"] * 3


def test_annotated_attention_computes_what_eager_attention_does() -> None:
    torch.manual_seed(0)
    shapes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    mask, results = torch.ones(5, 7, dtype=torch.bool).tril(), []
    for attention in (scaled_dot_product_attention, ranges.annotated_scaled_dot_product_attention):
        out = attention(*tensors, mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    assert all(map(torch.equal, *results))
