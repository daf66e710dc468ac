"""Records memory histories.

CUDA: torch's own memory history (torch.cuda.memory._record_memory_history, entries of _snapshot()). CPU: the memory
events of torch's profiler, as perfscribe.instruments.memory counts them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfscribe.instruments.memory import CPU_COUNTER, CUDA_COUNTER, CpuEvents
from perfscribe.instruments.profiling import memory_frames
from perfscribe.instruments.profiling.memory_history import Change, Held, History, Mark, Origin

if TYPE_CHECKING:
    import torch

# The CUDA allocator's unit (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize): each block is a multiple of it.
CUDA_GRANULARITY_BYTES = 512
BACKWARD_NODE = "autograd::engine::evaluate_function: "

Labels = Callable[[], Mapping[str, Iterable["torch.Tensor"]]]


class Recorder:
    """Context that records the history of what runs in it; history is set after it, also where an exception left it.

    labels: gives tensors by what they are ("parameters"), asked at entry and at exit. viewer_file: where torch's own
    dump for PyTorch's memory viewer goes (CUDA alone); nothing here reads it. The caller warms up before, and records
    nothing else meanwhile. ValueError: neither a CPU nor a CUDA device.
    """

    def __init__(self, device: str, labels: Labels, viewer_file: Path | None = None) -> None:
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device {device}: expected cpu or cuda")
        self._source = _Cuda(viewer_file) if device == "cuda" else _Cpu()
        self._labels = labels
        self._marks: list[tuple[str, int, dict[str, int]]] = []
        self.history: History

    def __enter__(self) -> Recorder:
        gc.collect()
        self._held_labels = labels_by_address(self._labels())
        self._source.start()
        self._start_ns = time.time_ns()
        return self

    def mark(self, name: str) -> None:
        """End a phase, the device's work included."""
        begun_ns = time.time_ns()
        counters = self._source.counters()
        # Waiting for the device takes a while, in which nothing is allocated: its middle is the moment furthest from
        # both phases, since the allocator's time stamps are a few us off from this clock.
        self._marks.append((name, (begun_ns + time.time_ns()) // 2, counters))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        history = self._source.stop(self._start_ns)
        history.held = [
            Held(held.address, held.size_bytes, held.rest_bytes, self._held_labels.get(held.address, ""))
            for held in history.held
        ]
        history.marks = [
            Mark(name, (time_ns - self._start_ns) // 1000, **counters) for name, time_ns, counters in self._marks
        ]
        history.labels = labels_by_address(self._labels())
        self.history = history


def labels_by_address(labelled: Mapping[str, Iterable[torch.Tensor]]) -> dict[int, str]:
    """What lies where: the label of each tensor's storage."""
    return {
        tensor.untyped_storage().data_ptr(): label
        for label, tensors in labelled.items()
        for tensor in tensors
        if tensor.untyped_storage().nbytes()
    }


class _Cuda:
    """torch's memory history of the current CUDA device."""

    def __init__(self, viewer_file: Path | None) -> None:
        self.viewer_file = viewer_file

    def start(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._before = torch.cuda.memory._snapshot()["segments"]
        # Frames of Python alone: those of C++ take minutes to look up. Taking a block back needs no stack.
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
        torch.cuda.reset_peak_memory_stats()

    def counters(self) -> dict[str, int]:
        """Of the phase that ends; the next one's begin anew."""
        import torch

        torch.cuda.synchronize()
        found = {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        torch.cuda.reset_peak_memory_stats()
        return found

    def stop(self, start_ns: int) -> History:
        import torch

        device = torch.cuda.current_device()
        trace = torch.cuda.memory._snapshot()["device_traces"][device]
        if self.viewer_file is not None:
            self.viewer_file.parent.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(self.viewer_file))
        torch.cuda.memory._record_memory_history(None)  # which also forgets the entries
        return from_cuda(
            [segment for segment in self._before if segment.get("device", device) == device], trace, start_ns
        )


def from_cuda(segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], start_ns: int) -> History:
    """A history of the segments before a pass and the trace entries of it, both as torch's _snapshot() gives them.

    A block counts from `alloc` to `free_requested`, as torch.cuda.memory_allocated counts. The sizes of entries are
    those asked for, those of segments' blocks the allocator's own.
    """
    history = History(CUDA_COUNTER, CUDA_GRANULARITY_BYTES)
    history.held = [_held(block) for segment in segments for block in _live_blocks(segment)]
    index: dict[Origin, int] = {}
    for entry in trace:
        time_us, action, size = int(entry["time_us"]) - start_ns // 1000, entry["action"], int(entry["size"])
        if action == "alloc":
            origin = Origin("", tuple(_cuda_frames(entry.get("frames", ()))))
            number = index.setdefault(origin, len(index))
            history.changes.append(Change(time_us, int(entry["addr"]), size, number))
        elif action == "free_requested":
            history.changes.append(Change(time_us, int(entry["addr"]), -size))
        elif action == "oom":
            history.out_of_memory.append((size, int(entry["device_free"])))
    history.origins = list(index)
    return history


def _live_blocks(segment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The segment's blocks that tensors hold, each with its address (which older versions leave out)."""
    blocks, address = [], segment["address"]
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            blocks.append({"address": address, **block})
        address += block["size"]
    return blocks


def _held(block: Mapping[str, Any]) -> Held:
    rounded = -(-block["requested_size"] // CUDA_GRANULARITY_BYTES) * CUDA_GRANULARITY_BYTES
    return Held(block["address"], block["requested_size"], block["size"] - rounded)


def _cuda_frames(frames: Iterable[Mapping[str, Any]]) -> list[str]:
    return [memory_frames.place(frame["filename"], frame["name"], frame["line"]) for frame in frames]


class _Cpu:
    """The CPU allocator, by torch's profiler."""

    def __init__(self) -> None:
        self._events = CpuEvents(describe=_cpu_origin)

    def start(self) -> None:
        self._events.start()

    def counters(self) -> dict[str, int]:
        """The CPU allocator keeps none."""
        return {}

    def stop(self, start_ns: int) -> History:
        history = History(CPU_COUNTER, granularity_bytes=1)
        changes = self._events.stop()
        history.held = [Held(address, size) for address, size in self._events.held.items()]
        index: dict[Origin, int] = {}
        for change in changes:
            origin = index.setdefault(change.origin, len(index)) if change.origin is not None else -1
            time_us = (change.time_ns - start_ns) // 1000
            history.changes.append(Change(time_us, change.address, change.size_bytes, origin))
        history.origins = list(index)
        return history


def _cpu_origin(event: Any) -> Origin:
    """The operator that Python or autograd called, and the frames around it.

    The profiler knows the line of a call, but not that of an operator written as + or @: there the line is the one in
    which the function begins.
    """
    from torch._C._profiler import _EventType

    frames: list[str] = []
    operator, line = "", 0
    while event is not None:
        fields = event.extra_fields
        if event.tag == _EventType.TorchOp and not frames:
            node = event.name.removeprefix(BACKWARD_NODE)
            operator = node if event.name.startswith("aten::") or node != event.name else operator
        elif event.tag == _EventType.PyCCall:
            line = fields.caller.line_number
        elif event.tag == _EventType.PyCall:
            where = fields.callsite
            frames.append(memory_frames.place(where.file_name, where.function_name, line or where.line_number))
            line = fields.caller.line_number
        event = event.parent
    return Origin(operator, tuple(frames))
