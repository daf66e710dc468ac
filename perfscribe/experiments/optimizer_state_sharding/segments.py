"""Peaks of memory between marks."""

from __future__ import annotations

import gc
import time
from types import TracebackType

import torch

from perfscribe.instruments.memory import CpuEvents

SETTLE_S = 0.03  # gloo's threads let go of what they have sent a moment after the wait for it


class Segments:
    """Context that counts the bytes that tensors take while a pass runs, and their peak between marks.

    After it: before_bytes and after_bytes (at entry, garbage collected, and at exit), and peaks: (name, bytes) of each
    segment, in order; mark(name) ends one. CUDA: the allocator's counters. CPU: CpuEvents of instruments/memory.py.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.before_bytes = self.after_bytes = 0
        self.peaks: list[tuple[str, int]] = []

    def __enter__(self) -> Segments:
        if self._device.type == "cpu":
            time.sleep(SETTLE_S)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self.before_bytes = torch.cuda.memory_allocated(self._device)
        else:
            self._ends: list[tuple[int, str]] = []
            self._events = CpuEvents()
            self._events.start()
            self.before_bytes = sum(self._events.held.values())
        return self

    def mark(self, name: str) -> None:
        """End a segment here."""
        if self._device.type == "cuda":
            self.peaks.append((name, torch.cuda.max_memory_allocated(self._device)))
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._ends.append((time.time_ns(), name))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._device.type == "cuda":
            self.after_bytes = torch.cuda.memory_allocated(self._device)
            return
        changes = self._events.stop()
        allocated, position = self.before_bytes, 0
        for end_ns, name in self._ends:
            peak = allocated
            while position < len(changes) and changes[position].time_ns <= end_ns:
                allocated += changes[position].size_bytes
                peak = max(peak, allocated)
                position += 1
            self.peaks.append((name, peak))
        self.after_bytes = allocated + sum(change.size_bytes for change in changes[position:])
