"""torch.compile from cold: no cache of earlier compilations, what a process pays once apart, and what was compiled.

A compilation is what a user's first call waits for, so nothing of an earlier one may shorten it; and Dynamo works
around what it cannot compile without saying so, so what it did is counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, cast

import torch

from perfscribe.instruments.timing import synchronise

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, backend: str) -> Function:
    """The function, or module, compiled for the shapes that it is called with; its first call compiles."""
    return cast(Function, torch.compile(function, backend=backend, dynamic=False))


@contextmanager
def cold_caches() -> Iterator[None]:
    """Let inductor and Triton find nothing of earlier compilations, neither on disk nor in this process."""
    from torch._inductor.utils import fresh_cache

    with tempfile.TemporaryDirectory(prefix="perfscribe-compile-") as folder, fresh_cache(dir=folder):
        yield


@cache
def start_compiler(backend: str, device: str) -> float:
    """Compile one addition, so that what a process pays once is paid; seconds that this took.

    That is importing the compiler, trying out the C++ compiler and starting processes that compile. Later calls in the
    same process give the same figure.
    """
    start = time.perf_counter()
    with cold_caches():
        compiled(_plus_one, backend)(torch.ones(8, device=device))
        synchronise(device)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return time.perf_counter() - start


def _plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def counts() -> dict[str, int]:
    """What Dynamo and inductor did since they were last reset.

    graphs, graph_breaks; recompiles: times that a function was compiled again, for other shapes, dtypes or modes.
    """
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(times - 1 for times in FRAME_COMPILE_COUNTER.values()),
    }
