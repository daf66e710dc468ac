"""The ranges that a profiled program marks, and their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

WARMUP = "warm-up"
STEP = "step"
INFERENCE = "inference"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
ATTENTION_SCORES = "attention scores"
SOFTMAX = "softmax"
FINAL_MATMUL = "final matmul"


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark what runs inside for whichever profiler watches.

    For nsys an NVTX range in the default domain, by the nvtx package (without the package none); for the torch profiler
    a record_function, while it records. With neither it costs about a microsecond. The range is the host's: kernels
    belong to it by the time of their launch.
    """
    nvtx = _nvtx()
    torch = sys.modules.get("torch")
    record = torch.profiler.record_function(name) if torch and torch.autograd._profiler_enabled() else None
    if nvtx is not None:
        nvtx.push_range(name)
    try:
        if record is None:
            yield
        else:
            with record:
                yield
    finally:
        if nvtx is not None:
            nvtx.pop_range()


@cache
def _nvtx() -> Any | None:
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx
