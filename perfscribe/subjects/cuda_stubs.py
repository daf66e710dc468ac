"""Stand-ins for torch.cuda's events and NVTX: students' code calls them, but CPU builds of torch lack them."""

from __future__ import annotations

import time
from typing import Any

NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")


class Event:
    """CUDA event measured with the host's clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        """Read the clock."""
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        return (end._at - self._at) * 1e3

    def query(self) -> bool:
        """Return True: the event is always complete."""
        return True

    def synchronize(self, *_: Any) -> None:
        """Return at once."""

    wait = synchronize


def install() -> None:
    """Replace the functions of torch.cuda, in a process without a GPU that runs a subject's code."""
    import torch

    for name in NVTX:
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.cuda.Event = Event  # type: ignore[misc, assignment]
    torch.cuda.synchronize = _nothing  # type: ignore[assignment]


def _nothing(*_: Any, **__: Any) -> int:
    return 0
