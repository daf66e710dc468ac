"""Stand-ins for what annotates and times CUDA work: a CPU build of torch lacks it, students' code calls it anyway."""

from __future__ import annotations

import time
from typing import Any

NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")


class Event:
    """A CUDA event by the host's clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        """Now."""
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this one to another."""
        return (end._at - self._at) * 1e3

    def query(self) -> bool:
        """Done."""
        return True

    def synchronize(self, *_: Any) -> None:
        """Nothing to wait for."""

    wait = synchronize


def install() -> None:
    """Put them in place: for a process that has no GPU and runs a subject's code."""
    import torch

    for name in NVTX:
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.cuda.Event = Event  # type: ignore[misc, assignment]
    torch.cuda.synchronize = _nothing  # type: ignore[assignment]


def _nothing(*_: Any, **__: Any) -> int:
    return 0
