"""Records a memory history: every block that the allocator allocates and frees during a pass, with its origin.

CUDA: torch's memory history (torch.cuda.memory._record_memory_history, entries of _snapshot()). CPU: the memory events
of torch's profiler, as perfscribe.instruments.memory counts them. Times are host times, because the allocator works on
the host; the device may lag far behind.
"""

from __future__ import annotations

import ast
import gc
import gzip
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfscribe.base.atomic import replacing
from perfscribe.instruments.memory import CPU_COUNTER, CUDA_COUNTER, CpuEvents

if TYPE_CHECKING:
    import torch

# The CUDA allocator's granularity (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
CUDA_GRANULARITY_BYTES = 512
BACKWARD_NODE = "autograd::engine::evaluate_function: "
PROJECT = Path(__file__).resolve().parents[3]

Labels = Callable[[], Mapping[str, Iterable["torch.Tensor"]]]


@dataclass(frozen=True)
class Origin:
    """Requester of a block: the operator ("" if not recorded) and Python's frames, innermost first."""

    operator: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """A block allocated before the pass. rest_bytes: part beyond size_bytes of a block that was not split."""

    address: int
    size_bytes: int
    rest_bytes: int = 0
    label: str = ""


@dataclass(frozen=True)
class Change:
    """A block allocated, or freed (size_bytes negative, origin -1).

    time_us: since the history's start. size_bytes: as requested, not rounded up. origin: index in History.origins.
    """

    time_us: int
    address: int
    size_bytes: int
    origin: int = -1


@dataclass(frozen=True)
class Mark:
    """End of a phase, with the allocator's counters for it, in bytes, if it has any (CUDA)."""

    name: str
    time_us: int
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass
class History:
    """One recorded pass; labels: contents of the blocks alive at its end, by address."""

    counter: str
    granularity_bytes: int
    held: list[Held] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write as compressed JSON, one object per dataclass; creates the file's folder if it is missing."""
        text = json.dumps(self, default=vars, allow_nan=False, separators=(",", ":"))
        with replacing(path) as temporary:
            temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


class Recorder:
    """Context that records the history of a pass; history is set after it, even if an exception left it.

    labels: returns tensors by label ("parameters"), called at entry and at exit. viewer_file: path of torch's dump for
    PyTorch's memory viewer (CUDA only); nothing here reads it. The caller warms up before, and records nothing else at
    the same time.
    """

    def __init__(self, device: str, labels: Labels, viewer_file: Path | None = None) -> None:
        self._source = _Cuda(viewer_file) if device == "cuda" else _Cpu()
        self._labels = labels
        self._marks: list[tuple[str, int, dict[str, int]]] = []
        self.history: History

    def __enter__(self) -> Recorder:
        gc.collect()
        self._held_labels = _by_address(self._labels())
        self._source.start()
        self._start_ns = time.time_ns()
        return self

    def mark(self, name: str) -> None:
        """End a phase, after waiting for the device."""
        begun_ns = time.time_ns()
        counters = self._source.counters()
        # Nothing is allocated while waiting for the device: the middle of the wait is the moment furthest from both
        # phases, because the allocator's time stamps differ from this clock by a few us.
        self._marks.append((name, (begun_ns + time.time_ns()) // 2, counters))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        history = self._source.stop(self._start_ns)
        history.held = [replace(held, label=self._held_labels.get(held.address, "")) for held in history.held]
        history.marks = [
            Mark(name, (time_ns - self._start_ns) // 1000, **counters) for name, time_ns, counters in self._marks
        ]
        history.labels = _by_address(self._labels())
        self.history = history


def _by_address(labelled: Mapping[str, Iterable[torch.Tensor]]) -> dict[int, str]:
    """Return the label of each tensor's storage, by address."""
    return {
        tensor.untyped_storage().data_ptr(): label
        for label, tensors in labelled.items()
        for tensor in tensors
        if tensor.untyped_storage().nbytes()
    }


# --- sources --------------------------------------------------------------------------------------------------------


class _Cuda:
    """torch's memory history of the current CUDA device."""

    def __init__(self, viewer_file: Path | None) -> None:
        self.viewer_file = viewer_file

    def start(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._before = torch.cuda.memory._snapshot()["segments"]
        # Only Python frames: C++ frames take minutes to resolve. Frees need no stack.
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
        torch.cuda.reset_peak_memory_stats()

    def counters(self) -> dict[str, int]:
        """Return the counters of the phase that ends, and reset them for the next."""
        import torch

        torch.cuda.synchronize()
        counters = {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        torch.cuda.reset_peak_memory_stats()
        return counters

    def stop(self, start_ns: int) -> History:
        import torch

        device = torch.cuda.current_device()
        trace = torch.cuda.memory._snapshot()["device_traces"][device]
        if self.viewer_file is not None:
            self.viewer_file.parent.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(self.viewer_file))
        torch.cuda.memory._record_memory_history(None)  # also discards the entries
        return from_cuda(
            [segment for segment in self._before if segment.get("device", device) == device], trace, start_ns
        )


def from_cuda(segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], start_ns: int) -> History:
    """Build a history from the segments before a pass and its trace entries, both from torch's _snapshot().

    A block counts from `alloc` to `free_requested`, like torch.cuda.memory_allocated. Sizes of entries are as
    requested, those of segments' blocks are the allocator's.
    """
    history = History(CUDA_COUNTER, CUDA_GRANULARITY_BYTES)
    history.held = [held for segment in segments for held in _live_blocks(segment)]
    index: dict[Origin, int] = {}
    for entry in trace:
        time_us, action, size = int(entry["time_us"]) - start_ns // 1000, entry["action"], int(entry["size"])
        if action == "alloc":
            frames = (place(frame["filename"], frame["name"], frame["line"]) for frame in entry.get("frames", ()))
            number = index.setdefault(Origin("", tuple(frames)), len(index))
            history.changes.append(Change(time_us, int(entry["addr"]), size, number))
        elif action == "free_requested":
            history.changes.append(Change(time_us, int(entry["addr"]), -size))
    history.origins = list(index)
    return history


def _live_blocks(segment: Mapping[str, Any]) -> Iterator[Held]:
    """Yield the segment's blocks in use. Older versions omit their addresses, which follow from the sizes."""
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            asked = block["requested_size"]
            rounded = -(-asked // CUDA_GRANULARITY_BYTES) * CUDA_GRANULARITY_BYTES
            yield Held(address, asked, block["size"] - rounded)
        address += block["size"]


class _Cpu:
    """The CPU allocator, by torch's profiler."""

    def __init__(self) -> None:
        self._events = CpuEvents(describe=_cpu_origin)
        self.start = self._events.start

    def counters(self) -> dict[str, int]:
        """Return {}: the CPU allocator has no counters."""
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
    """Return the operator that Python or autograd called, and the frames around it.

    The profiler records the line of a call, but not that of an operator written as + or @; then the line is the
    function's first.
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
            frames.append(place(where.file_name, where.function_name, line or where.line_number))
            line = fields.caller.line_number
        event = event.parent
    return Origin(operator, tuple(frames))


# --- places in source code: the same on every machine, without absolute paths ---------------------------------------


def place(file: str, function: str, line: int) -> str:
    """Return `file:function:line`, the file relative to the project or to the folder of installed libraries.

    A function of the project is named with its class, as perfscribe/models/transformer.py:Block.forward:120.
    """
    relative = _relative(file)
    if relative.startswith("perfscribe/"):
        holding = [name for first, last, name in _functions(relative) if first <= line <= last]
        function = next((name for name in reversed(holding) if name.rpartition(".")[2] == function), function)
    return f"{relative}:{function}:{line}"


@cache
def _relative(file: str) -> str:
    """Return the file's path without machine-specific folders; only the base name if none of its folders is known."""
    # Libraries first: the environment may be in the project's folder.
    for private in (
        r"/.*/(?:site|dist)-packages/",
        re.escape(f"{PROJECT}/"),
        r"/.*/(?=(?:perfscribe|torch)/)",
        r"/.*/",
    ):
        file = re.sub(f"^{private}", "", file)
    return file


@cache
def _functions(relative: str) -> list[tuple[int, int, str]]:
    """Return (first line, last line, qualified name) of every function in a file, outer ones first."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{prefix}{child.name}."
                if not isinstance(child, ast.ClassDef):
                    yield child.lineno, child.end_lineno or child.lineno, inside[:-1]
            yield from walk(child, inside)

    path = PROJECT / relative
    return list(walk(ast.parse(path.read_text(encoding="utf-8")), "")) if path.is_file() else []
