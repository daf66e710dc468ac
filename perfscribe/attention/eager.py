"""Attention in plain PyTorch: every intermediate is a tensor in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √d) v over the last two dimensions.

    q (..., n, d), k (..., m, d), v (..., m, e); mask (n, m) or broadcastable to (..., n, m), boolean, True where
    a query may see a key (the convention of torch.nn.functional.scaled_dot_product_attention).
    Returns (..., n, e). A row of the mask that is all False gives NaN.

    N×N matrices, that is tensors of shape (..., n, m), in a call with gradients enabled:

    | case                                | allocated                 | alive at once | kept for backward         |
    | no mask                             | 2 (scores, softmax)       | 2             | 1 (softmax)               |
    | mask                                | 3 (and masked scores)     | 2             | 1 (softmax)               |
    | bf16 or fp16 autocast, CPU          | as above, all low         | 2             | 1 (softmax, low)          |
    | bf16 autocast, CUDA                 | and 2: scores in fp32,    | 3             | 2 (softmax in fp32, and   |
    |                                     | softmax in low precision  |               | in low precision)         |
    | fp16 autocast, CUDA                 | and 1: softmax in fp16    | 2             | 2, as for bf16            |

    The scale is applied to q (n·d numbers, not n·m). Masking saves no float matrix for backward: only the boolean
    mask, which all calls can share.
    """
    scale = q.shape[-1] ** -0.5
    scores = (q * scale) @ k.transpose(-2, -1)  # (..., n, m)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    del scores  # otherwise it would stay alive, next to the weights, through the last product
    return weights @ v
