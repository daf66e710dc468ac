"""FlashAttention-2 in plain PyTorch: tiles, online softmax, and a backward pass that recomputes the tiles.

The algorithm is that of Dao, FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2, as required by Stanford's CS336
assignment 2 (handout 1.0.4, section 1.3), but backward, too, has its outer loop over queries. Scores exist only as
tiles of at most TILE x TILE; memory beyond inputs, outputs and tiles is O(n·d): log-sum-exp and gradient accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from perfscribe.attention.checks import HALF_AND_SINGLE, check_arguments

TILE = 256  # queries and keys per tile: makes the Python loop cheap, and is small compared with a long sequence
DTYPES = (*HALF_AND_SINGLE, torch.float64)
DEVICES = ("cpu", "cuda")


class FlashAttentionTorch(torch.autograd.Function):
    """softmax(Q Kᵀ / √d) V without the n × m matrix of scores, in PyTorch operations, on a CPU or CUDA device."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Return attention's output, in the shape and dtype of Q, and save what backward needs.

        Q is (batch, n, d) or (batch, heads, n, d); K and V are the same with m keys; all fp32, bf16, fp16 or fp64, d a
        multiple of 8 from 16 to 128. is_causal: query i sees keys j ≤ i, aligned top left. Products and sums are in
        fp32 (fp64 for fp64). Saved: Q, K, V, the output, and the log-sum-exp of each row of scores, (batch, n) or
        (batch, heads, n). Raises ValueError for other arguments: see checks.check_arguments.
        """
        check_arguments(q, k, v, is_causal, DTYPES, DEVICES)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        logsumexp = torch.empty(q.shape[:-1], dtype=_accumulator(q.dtype), device=q.device)
        for rows in _tiles(q.shape[-2]):
            out[..., rows, :], logsumexp[..., rows] = _attend(q, k, v, rows, is_causal)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.is_causal = is_causal
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of Q, K, V, in their shapes and dtypes, and None for is_causal."""
        q, k, v, out, logsumexp = ctx.saved_tensors
        d_out = gradients[0]
        accumulator = _accumulator(q.dtype)
        d_q, d_k, d_v = (torch.zeros_like(x, dtype=accumulator) for x in (q, k, v))
        for rows in _tiles(q.shape[-2]):
            upstream = d_out[..., rows, :].to(accumulator)
            delta = (upstream * out[..., rows, :].to(accumulator)).sum(-1, keepdim=True)
            for keys in _visible_tiles(rows, k.shape[-2], ctx.is_causal):
                weights = torch.exp(_scores(q, k, rows, keys, ctx.is_causal) - logsumexp[..., rows, None])
                d_v[..., keys, :] += weights.transpose(-2, -1) @ upstream
                d_weights = upstream @ v[..., keys, :].to(accumulator).transpose(-2, -1)
                d_scores = weights * (d_weights - delta) * q.shape[-1] ** -0.5
                d_q[..., rows, :] += d_scores @ k[..., keys, :].to(accumulator)
                d_k[..., keys, :] += d_scores.transpose(-2, -1) @ q[..., rows, :].to(accumulator)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None


def _attend(q: Tensor, k: Tensor, v: Tensor, rows: slice, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of one tile of queries, by online softmax over the tiles of keys."""
    accumulator = _accumulator(q.dtype)
    shape = q[..., rows, :].shape
    peak = torch.full((*shape[:-1], 1), float("-inf"), dtype=accumulator, device=q.device)
    total = torch.zeros_like(peak)
    out = torch.zeros(shape, dtype=accumulator, device=q.device)
    for keys in _visible_tiles(rows, k.shape[-2], is_causal):
        scores = _scores(q, k, rows, keys, is_causal)
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher)
        rescale = torch.exp(peak - higher)
        total = total * rescale + weights.sum(-1, keepdim=True)
        out = out * rescale + weights @ v[..., keys, :].to(accumulator)
        peak = higher
    return (out / total).to(q.dtype), (peak + torch.log(total)).squeeze(-1)


def _scores(q: Tensor, k: Tensor, rows: slice, keys: slice, is_causal: bool) -> Tensor:
    """Return the scaled scores of one tile, -inf where a query may not see a key."""
    accumulator = _accumulator(q.dtype)
    scores = q[..., rows, :].to(accumulator) @ k[..., keys, :].to(accumulator).transpose(-2, -1)
    scores *= q.shape[-1] ** -0.5
    if is_causal and keys.stop > rows.start + 1:
        query = torch.arange(rows.start, rows.stop, device=q.device)
        key = torch.arange(keys.start, keys.stop, device=q.device)
        scores.masked_fill_(query[:, None] < key[None, :], float("-inf"))
    return scores


def _tiles(length: int) -> Iterator[slice]:
    return (slice(start, min(start + TILE, length)) for start in range(0, length, TILE))


def _visible_tiles(rows: slice, n_keys: int, is_causal: bool) -> Iterator[slice]:
    """Return the tiles of keys that some query of `rows` sees; the first contains key 0, which every query sees."""
    return _tiles(min(rows.stop, n_keys) if is_causal else n_keys)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
