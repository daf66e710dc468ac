"""Eager attention with a range around each of its three parts."""

from __future__ import annotations

import torch
from torch import Tensor

from perfscribe.instruments.profiling.ranges import ATTENTION_SCORES, FINAL_MATMUL, SOFTMAX, annotate


def annotated_scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """What perfscribe.attention.eager.scaled_dot_product_attention computes, by the same operators.

    q (..., n, d), k (..., m, d), v (..., m, e); mask (n, m) or broadcastable to (..., n, m). Returns (..., n, e).
    Scaling of q and the mask count as attention scores. Backward runs outside of Python, so its kernels are in none
    of the three ranges.
    """
    with annotate(ATTENTION_SCORES):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (..., n, m)
        if mask is not None:
            scores = torch.where(mask, scores, float("-inf"))
    with annotate(SOFTMAX):
        weights = torch.softmax(scores, dim=-1)
    del scores
    with annotate(FINAL_MATMUL):
        return weights @ v
