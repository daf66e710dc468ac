"""The ranges that a profiled program marks, and their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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
    """Mark the body as a range for the active profiler.

    For nsys an NVTX range in the default domain, if the nvtx package is installed; for the torch profiler, while it
    records, a record_function. With neither it costs about a microsecond. The range is the host's: kernels belong to it
    by launch time.
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


def annotated_scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute perfscribe.attention.eager.scaled_dot_product_attention with the same operators, in three ranges.

    q (..., n, d), k (..., m, d), v (..., m, e); mask (n, m) or broadcastable to (..., n, m). Returns (..., n, e).
    Scaling of q and the mask count as attention scores. Backward runs outside Python, so its kernels are in none of
    the three ranges.
    """
    import torch

    with annotate(ATTENTION_SCORES):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (..., n, m)
        if mask is not None:
            scores = torch.where(mask, scores, float("-inf"))
    with annotate(SOFTMAX):
        weights = torch.softmax(scores, dim=-1)
    del scores
    with annotate(FINAL_MATMUL):
        return weights @ v
