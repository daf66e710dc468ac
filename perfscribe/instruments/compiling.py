"""torch.compile from cold: no caches, one-time costs of the process measured separately, and counts of what it did.

A user's first call waits for compilation, so no earlier compilation may shorten it. Dynamo silently falls back where it
cannot compile, so graphs, graph breaks and recompilations are counted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import patch

import torch

from perfscribe.instruments.timing import synchronise

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, backend: str) -> Function:
    """Return the function, or module, compiled for fixed shapes; its first call compiles."""
    return cast(Function, torch.compile(function, backend=backend, dynamic=False))


@contextmanager
def cold_caches() -> Iterator[None]:
    """Hide earlier compilations, on disk and in this process, from inductor and Triton."""
    with tempfile.TemporaryDirectory(prefix="perfscribe-compile-") as folder, caches(Path(folder)):
        yield


@contextmanager
def caches(folder: Path) -> Iterator[None]:
    """Let inductor and Triton keep compiled code in a folder; earlier compilations of this process are forgotten."""
    from torch._inductor.utils import clear_caches

    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    clear_caches()
    try:
        with patch.dict(os.environ, places):
            yield
    finally:
        clear_caches()


@cache
def start_compiler(backend: str, device: str) -> float:
    """Compile one addition to pay the process's one-time costs; returns the seconds it took.

    These are importing the compiler, testing the C++ compiler and starting compile workers. Later calls in the same
    process return the same number.
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
    """Return what Dynamo and inductor did since their last reset.

    graphs, graph_breaks; recompiles: times that a function was recompiled, for other shapes, dtypes or modes.
    """
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(times - 1 for times in FRAME_COMPILE_COUNTER.values()),
    }
