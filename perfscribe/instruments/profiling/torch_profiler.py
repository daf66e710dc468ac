"""Uses the torch profiler (Kineto) instead of nsys: the same trace, from the file it writes for trace viewers.

That file is read, not the profiler's own objects, because its format is public and stable.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median_low
from typing import Any

from perfscribe.instruments.profiling.summary import device_time
from perfscribe.instruments.profiling.trace import (
    COPY,
    KERNEL,
    MEMSET,
    OPERATOR,
    UNKNOWN_THREAD,
    Kernel,
    Range,
    Trace,
    thread_key,
)

KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": MEMSET}
LAUNCHES = ("cuda_runtime", "cuda_driver")
ON_CPU = "operators on the CPU"
# Operators that change only shapes, strides and the like: on a GPU they launch no kernel.
BOOKKEEPING = re.compile(
    r"aten::_?((un)?squeeze|(un)?flatten|(un)?safe_view|unsafe_view|unsafe_split|view(_as|_as_real)?|reshape(_alias|_as)?|"
    r"as_strided|transpose|t|numpy_T|permute|movedim|expand(_as)?|broadcast_(to|tensors)|alias|detach|select|slice|narrow|"
    r"split(_with_sizes)?|chunk|unbind|unfold|diagonal|resolve_(conj|neg)|conj|real|imag|lift_fresh|result_type|resize|"
    r"empty(_like|_strided)?|new_empty(_strided)?|set|set_data|requires_grad|output_nr|version|is_nonzero|item|"
    r"local_scalar_dense|promote_types|scalar_tensor|has_compatible_shallow_copy_type|to_dense|sparse_mask|record_stream|retain_grad)_?$"
)
# An operator that calls others counts as work if its longest stretch outside them is at least this share of it: the
# median of its calls, since a thread that waited for a core inside an operator says nothing about the operator.
OWN_WORK = 0.25


class NoKernels(RuntimeError):
    """The profiler recorded no kernel of a program that used CUDA."""


class Recording:
    """Result of recording(): its trace is set once the block has ended."""

    trace: Trace


@contextmanager
def recording(device: str) -> Iterator[Recording]:
    """Record what the block runs on this device, cpu or cuda; waits for all queued work.

    Ranges are those of ranges.annotate and every other record_function. The first start can take seconds, before the
    block begins.
    Raises NoKernels if device is cuda and none was recorded.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    recorded = Recording()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as profiler:
        yield recorded
        if device == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        recorded.trace = read_chrome_trace(path, device, torch.__version__.split("+")[0])
    if device == "cuda" and not recorded.trace.kernels:
        raise NoKernels(f"{recorded.trace.tool} recorded no kernel of a program that used CUDA")


def busy_ms(step: Callable[[], object], steps: int) -> float | str:
    """Return the time per step in which a GPU runs a kernel or a copy (ms), or why it is not known.

    A profile makes later launches of the process slower, by a quarter on an H200.
    """
    try:
        with recording("cuda") as recorded:
            for _ in range(steps):
                step()
    except NoKernels as error:
        return str(error)
    return device_time(recorded.trace.kernels).busy_ns / steps / 1e6


def events_of(path: Path) -> list[Mapping[str, Any]]:
    """Return the events with a duration in a file that torch.profiler wrote; ValueError (one line) if it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"), parse_float=Decimal)
        events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
        for event in events:
            _ = event["name"], span_ns(event)  # which every reader takes
        return events
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: no trace of the torch profiler ({type(error).__name__}: {error})") from error


def span_ns(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and end in ns; the file has µs with three decimals."""
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(event["dur"]) * 1000)


def read_chrome_trace(path: Path, device: str, version: str) -> Trace:
    """Return the trace in a file that torch.profiler wrote; raises ValueError (one line) if it is not one.

    On cuda: kernels, copies and memsets with the calls that launched them. On cpu: operators instead (torch's and
    custom ones), each with the longest stretch of time in which it called no other operator, so that times add up and
    nothing counts twice; operators that only call others, or touch no element, are omitted. Their launch is their
    start.
    """
    events = events_of(path)
    kernels = _device_work(events) if device == "cuda" else _operators(events)
    ranges = [
        Range(event["name"], *span_ns(event), _thread(event))
        for event in events
        if event.get("cat") == "user_annotation"
    ]
    kernels.sort(key=lambda kernel: (kernel.start_ns, kernel.end_ns))
    ranges.sort(key=lambda time_range: (time_range.start_ns, -time_range.end_ns))
    unlaunched = sum(kernel.launch_thread == UNKNOWN_THREAD for kernel in kernels)
    remarks = [f"{unlaunched} kernels without a recorded launch"] if unlaunched else []
    tool = f"torch profiler {version}" + ("" if device == "cuda" else f", {ON_CPU}")
    return Trace(tool, kernels, ranges, "" if kernels else "the torch profiler recorded none", remarks)


def _thread(event: Mapping[str, Any]) -> int:
    return thread_key(int(event["pid"]), int(event["tid"]))


def _device_work(events: list[Mapping[str, Any]]) -> list[Kernel]:
    launches: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {}):
            launches.setdefault(event["args"]["correlation"], event)
    work = []
    for event in events:
        if event.get("cat") in KINDS:
            arguments, (start, end) = event.get("args", {}), span_ns(event)
            launch = launches.get(arguments.get("correlation", -1))
            began, ended = span_ns(launch) if launch else (start, end)
            thread = _thread(launch) if launch else UNKNOWN_THREAD
            stream, device = int(arguments.get("stream", 0)), int(arguments.get("device", 0))
            work.append(Kernel(event["name"], start, end, began, ended, thread, stream, device, KINDS[event["cat"]]))
    return work


def _operators(events: list[Mapping[str, Any]]) -> list[Kernel]:
    by_thread: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        name = event["name"]
        # an operator, not an autograd node or a compiled region
        if event.get("cat") == "cpu_op" and "::" in name and not name.startswith(("autograd::", "torch::autograd::")):
            by_thread[_thread(event)].append((*span_ns(event), name))
    closed = [(call, thread) for thread, calls in by_thread.items() for call in _closed_calls(calls)]
    shares: dict[str, list[float]] = defaultdict(list)
    for call, _ in closed:
        if call.called_work:
            shares[call.name].append(call.own_share)
    own_work = {name: median_low(found) >= OWN_WORK for name, found in shares.items()}
    return [
        Kernel(call.name, *call.longest, call.longest[0], call.longest[0], thread, kind=OPERATOR)
        for call, thread in closed
        if call.computes and (not call.called_work or own_work[call.name])
    ]


@dataclass
class _Call:
    name: str
    start: int
    end: int
    reached: int  # end of the last operator that it called
    longest: tuple[int, int]
    called_work: bool = False

    def take(self, until: int) -> None:
        """Extend its own time from where it was reached to `until`, and keep it if it is the longest stretch."""
        if until - self.reached > self.longest[1] - self.longest[0]:
            self.longest = (self.reached, until)

    @property
    def computes(self) -> bool:
        return not BOOKKEEPING.match(self.name)

    @property
    def own_share(self) -> float:
        return (self.longest[1] - self.longest[0]) / max(1, self.end - self.start)


def _closed_calls(calls: list[tuple[int, int, str]]) -> list[_Call]:
    """Return one thread's calls of operators, each with its longest stretch outside those that it called."""
    open_calls: list[_Call] = []
    closed: list[_Call] = []

    def close(until: int) -> None:
        while open_calls and open_calls[-1].end <= until:
            call = open_calls.pop()
            call.take(call.end)
            if open_calls:
                open_calls[-1].reached = call.end
                open_calls[-1].called_work |= call.computes or call.called_work
            closed.append(call)

    for start, end, name in sorted(calls, key=lambda call: (call[0], -call[1])):
        close(start)
        if open_calls:
            open_calls[-1].take(start)
        open_calls.append(_Call(name, start, end, start, (start, start)))
    close(2**63)
    return closed
