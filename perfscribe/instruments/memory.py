"""Peak memory of a pass, and parsing of out-of-memory errors.

CUDA: the caching allocator's counters. CPU: torch has none, so the pass runs under torch's profiler, which reports each
block that the CPU allocator allocates or frees. Both count bytes allocated for tensors and kernels' scratch space, not
pages in use: code, the CUDA context, NCCL's and oneDNN's private buffers and fragmentation are excluded. On the CPU,
blocks that kernels allocate on worker threads are not seen.
"""

from __future__ import annotations

import gc
import os
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CUDA_COUNTER = "CUDA caching allocator"
CPU_COUNTER = "CPU allocator, by torch's profiler"
_MARK = "perfscribe.mark:"

_SIZES = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_SIZE = r"(?P<number>\d+(?:\.\d+)?) (?P<unit>bytes|B|KiB|MiB|GiB|TiB|PiB)\b"
_PATTERNS = {
    "requested_bytes": rf"(?:[Tt]ried|Unable) to allocate {_SIZE}",
    "free_bytes": rf"of which {_SIZE} is free",
    "total_bytes": rf"total capacity of {_SIZE}",
}
_OOM_TEXT = re.compile(  # matched from the start: an error that quotes another one does not count
    r"CUDA out of memory\."
    r"|CUDA (?:driver )?error: out of memory"
    r"|CUDA error: CUBLAS_STATUS_ALLOC_FAILED"
    r"|cuDNN error: CUDNN_STATUS_ALLOC_FAILED"
    r"|std::bad_alloc$"
    r"|(?:\[enforce fail at [^\]]+\] \S.*?\. )?DefaultCPUAllocator: (?:can't allocate|not enough) memory\b"
)


class PeakMemory:
    """Context that measures memory; run a separate, untimed pass in it.

    After it, in bytes: allocated_before_bytes (at entry, after garbage collection), peak_allocated_bytes (total,
    including what existed at entry), allocated_after_bytes (at exit), peak_reserved_bytes (of the caching allocator;
    None on the CPU, which has none), marks: allocated bytes at each mark(name), and peaks: name and peak of the segment
    that each mark ended, in order. counter names the counter used. All are set even if an exception leaves the context;
    it is not caught.

    CUDA's counters are host-side, so they include work that is only queued. On the CPU, memory at entry is the storage
    of all tensors that Python reaches, including gradients; a tensor held only by C++ (saved by a graph built before
    the context) is missing. The profiler slows the pass, and no other profiler may run at the same time. Raises
    ValueError for a device that is neither CPU nor CUDA.
    """

    allocated_before_bytes: int
    peak_allocated_bytes: int = 0
    allocated_after_bytes: int
    peak_reserved_bytes: int | None = None

    def __init__(self, device: str | torch.device) -> None:
        import torch

        kind = torch.device(device).type
        if kind not in ("cpu", "cuda"):
            raise ValueError(f"device {device}: expected cpu or cuda")
        self._device, self._events = device, CpuEvents() if kind == "cpu" else None
        self.counter = CUDA_COUNTER if kind == "cuda" else CPU_COUNTER
        self.marks: dict[str, int] = {}
        self.peaks: list[tuple[str, int]] = []

    def __enter__(self) -> PeakMemory:
        import torch

        if self._events is not None:
            gc.collect()
            self._events.start()
            self.allocated_before_bytes = sum(self._events.held.values())
        else:
            self.allocated_before_bytes = allocated_bytes(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def mark(self, name: str) -> None:
        """Record the bytes allocated now, which marks[name] holds after the context, and end a segment."""
        import torch

        if self._events is None:
            self.marks[name] = torch.cuda.memory_allocated(self._device)
            self.peaks.append((name, self._read_peak()))
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with torch.profiler.record_function(_MARK + name):
                pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        import torch

        if self._events is None:
            self._read_peak()
            self.allocated_after_bytes = torch.cuda.memory_allocated(self._device)
            return
        allocated = peak = self.allocated_before_bytes
        for change in self._events.stop():
            allocated += change.size_bytes
            peak = max(peak, allocated)
            if change.mark:
                self.marks[change.mark] = allocated
                self.peaks.append((change.mark, peak))
                peak = allocated
        self.peak_allocated_bytes = max([peak, *(of_segment for _, of_segment in self.peaks)])
        self.allocated_after_bytes = allocated

    def _read_peak(self) -> int:
        """Return the peak since the allocator's statistics were reset; keep the largest, and that of reserved bytes."""
        import torch

        peak = torch.cuda.max_memory_allocated(self._device)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, peak)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes or 0, torch.cuda.max_memory_reserved(self._device))
        return peak

    def values(self) -> dict[str, int | str]:
        """Return the numbers for Measurement.values, marks as <name>_bytes; those that do not exist are omitted."""
        figures: dict[str, int | str] = {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "allocated_before_bytes": self.allocated_before_bytes,
            "allocated_after_bytes": self.allocated_after_bytes,
            "memory_counter": self.counter,
        }
        if self.peak_reserved_bytes is not None:
            figures["peak_reserved_bytes"] = self.peak_reserved_bytes
        return figures | {f"{name}_bytes": allocated for name, allocated in self.marks.items()}


def allocated_bytes(device: str | torch.device) -> int:
    """Return the bytes allocated now, after garbage collection, as PeakMemory counts them."""
    import torch

    gc.collect()
    if torch.device(device).type == "cpu":
        return sum(storage.nbytes() for storage in _live_cpu_storages().values())
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


@dataclass(frozen=True)
class CpuChange:
    """A block that the CPU allocator allocated or freed, or a mark.

    time_ns: since the epoch. size_bytes: negative if freed, 0 for a mark. address: of the block. origin: result of
    CpuEvents.describe for the profiler's event; None for frees of older blocks and for marks.
    """

    time_ns: int
    size_bytes: int
    mark: str = ""
    address: int = 0
    origin: Any = None


class CpuEvents:
    """Records the CPU allocator's events between start() and stop(), with torch's profiler.

    The profiler does not know the sizes of older blocks, so their frees come from the storages' finalizers.

    describe: called with the profiler's event of each allocated block; if given, the profiler records Python stacks
    too, and the event's parents lead outwards through operators and frames.
    """

    def __init__(self, describe: Callable[[Any], Any] | None = None) -> None:
        self.held: dict[int, int] = {}  # bytes by address, at start()
        self._describe = describe
        self._ended: list[CpuChange] = []
        self._finalizers: list[weakref.finalize[Any, Any]] = []

    def start(self) -> None:
        """Record the existing tensors and start."""
        import torch

        # Kineto reads its log level at first start, and would otherwise print two lines per pass.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        for address, storage in _live_cpu_storages().items():
            size = self.held[address] = storage.nbytes()
            self._finalizers.append(weakref.finalize(storage, self._freed, address, size))
        self._profiler = torch.autograd.profiler.profile(profile_memory=True, with_stack=self._describe is not None)
        self._profiler.__enter__()

    def _freed(self, address: int, size: int) -> None:
        self._ended.append(CpuChange(time.time_ns(), -size, address=address))

    def stop(self) -> list[CpuChange]:
        """Stop; returns all changes and marks in order."""
        self._profiler.__exit__(None, None, None)
        for finalizer in self._finalizers:
            finalizer.detach()
        changes = self._ended + _profiled_changes(self._profiler, self._describe)
        del self._profiler
        return sorted(changes, key=lambda change: (change.time_ns, change.size_bytes, change.mark))


def _profiled_changes(profiler: Any, describe: Callable[[Any], Any] | None) -> list[CpuChange]:
    """Return the allocations, frees and marks in the events of a finished profile."""
    from torch._C._profiler import _EventType

    changes: list[CpuChange] = []
    stack = list(profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == _EventType.Allocation:
            block = event.extra_fields
            if block.device.type == "cpu":
                origin = describe(event) if describe is not None and block.alloc_size > 0 else None
                changes.append(CpuChange(event.start_time_ns, block.alloc_size, address=block.ptr, origin=origin))
        elif event.name.startswith(_MARK):
            changes.append(CpuChange(event.start_time_ns, 0, event.name.removeprefix(_MARK)))
    changes.sort(key=lambda change: (change.time_ns, change.size_bytes))
    return _of_this_profile(changes)


def _of_this_profile(changes: list[CpuChange]) -> list[CpuChange]:
    """Drop the frees of blocks that an earlier profile saw allocated: the finalizers count those."""
    live: set[int] = set()
    kept = []
    for change in changes:
        if change.size_bytes > 0:
            live.add(change.address)
        elif change.size_bytes < 0 and change.address not in live:
            continue
        elif change.size_bytes < 0:
            live.remove(change.address)
        kept.append(change)
    return kept


def _live_cpu_storages() -> dict[int, torch.UntypedStorage]:
    """Return the storages of all CPU tensors that the garbage collector knows, and of their gradients, by address."""
    import torch

    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]:
        for held in (tensor, tensor.grad if tensor.is_leaf else None):
            if held is None or held.device.type != "cpu":
                continue
            try:
                storage = held.untyped_storage()
                storages[storage.data_ptr()] = storage
            except (RuntimeError, NotImplementedError):  # sparse tensors and some subclasses have none
                continue
    storages.pop(0, None)
    return storages


def is_oom(error: BaseException) -> bool:
    """Return whether an exception, or one in its chain of causes, means that memory ran out.

    Recognised are torch.OutOfMemoryError, MemoryError, and RuntimeErrors with the texts of the CUDA driver, cuBLAS,
    cuDNN and torch's CPU allocator. Errors that merely mention memory or quote such a text do not count.
    """
    return _oom_in_chain(error) is not None


def parse_oom(error: BaseException) -> dict[str, int | None]:
    """Return requested_bytes, free_bytes and total_bytes of an out-of-memory error; None where its text lacks one.

    CUDA's text has two decimals of a unit, so its numbers are rounded to 0.005 of it. The CPU allocator reports only
    the requested size.
    """
    text = str(_oom_in_chain(error) or "")
    matches = {name: re.search(pattern, text) for name, pattern in _PATTERNS.items()}
    return {name: round(float(m["number"]) * _SIZES[m["unit"]]) if m else None for name, m in matches.items()}


def _oom_in_chain(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error in an exception's chain of causes."""
    while error is not None:
        # by name, so that torch need not be imported to ask
        kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        says_so = isinstance(error, RuntimeError) and _OOM_TEXT.match(str(error))
        if isinstance(error, MemoryError) or "torch.OutOfMemoryError" in kinds or says_so:
            return error
        error = error.__cause__
    return None
