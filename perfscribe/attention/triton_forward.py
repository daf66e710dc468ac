"""The forward pass in Triton: choice of tiles and splits, and the launches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton
from torch import Tensor

from perfscribe.attention import gluon_launches, triton_configs
from perfscribe.attention.triton_forward_kernels import combine_kernel, forward_kernel
from perfscribe.attention.triton_launches import Launch, Layout
from perfscribe.attention.triton_splits import Walks, split_length

COMBINED_ROWS = 16
GROUP_BYTES = 32 * 2**20  # well within the L2 of a data-centre GPU


@dataclass(frozen=True)
class Problem:
    """Sizes and choices shared by all kernels of one call.

    leading: (batch,) or (batch, heads). precision: Triton's input_precision of the products. interpreted: run by
    Triton's interpreter, which does not support bf16, so that products use fp32 copies.
    """

    leading: tuple[int, ...]
    n_queries: int
    n_keys: int
    head_dim: int
    causal: bool
    dtype: torch.dtype
    precision: str
    device: torch.device
    interpreted: bool
    settings: triton_configs.Settings

    @property
    def sequences(self) -> int:
        """Independent attention problems: batch × heads."""
        return math.prod(self.leading)

    @property
    def heads(self) -> int:
        """Heads per batch element; 1 without a heads dimension."""
        return self.leading[1] if len(self.leading) == 2 else 1

    @property
    def together(self) -> int:
        """Sequences whose programs are interleaved (tile_and_sequence): as many as fit GROUP_BYTES of streamed rows."""
        row_bytes = 2 * self.head_dim * self.dtype.itemsize
        fit = GROUP_BYTES // (max(self.n_queries, self.n_keys) * row_bytes)
        return min(self.sequences, max(1, fit))

    @property
    def cols(self) -> int:
        """Columns of a tile: the head dimension, rounded up to a power of two."""
        return int(triton.next_power_of_2(self.head_dim))

    @property
    def scale(self) -> float:
        """Factor of the scores before softmax."""
        return float(self.head_dim**-0.5)

    @property
    def factor(self) -> float:
        """Factor of the scores for softmax in base 2."""
        return self.scale * math.log2(math.e)

    @property
    def fills_hopper(self) -> bool:
        """Whether the Gluon kernels can run and have enough programs; not for chosen tiles or splits."""
        many = triton_configs.has_many_rows(min(self.n_queries, self.n_keys), self.sequences)
        fits = self.dtype != torch.float32 and self.head_dim > 32 and not self.interpreted
        chosen = self.settings.tiles or self.settings.splits
        return many and fits and not chosen and triton_configs.has_wgmma(self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate memory for a result."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def tile(self, kernel: triton_configs.Kernel) -> triton_configs.Tile:
        """Return the tile of a kernel."""
        length = max(self.n_queries, self.n_keys)
        kind = (self.dtype, self.precision)
        return triton_configs.tile_for(kernel, self.head_dim, length, *kind, self.settings.tiles)

    def split(self, kernel: triton_configs.Kernel, whole: int) -> int:
        """Return the rows per split of the dimension that a kernel streams; a multiple of `whole`."""
        tile = self.tile(kernel)
        upwards = kernel in ("forward", "dq")
        owned, streamed = (self.n_queries, self.n_keys) if upwards else (self.n_keys, self.n_queries)
        unit = max(tile.kept, tile.streamed, whole)
        walks = Walks(owned, streamed, tile.kept, unit, self.sequences, self.causal, upwards)
        chosen = (self.settings.splits or {}).get(kernel)
        return split_length(walks, triton_configs.multiprocessors(self.device), tile.warps, chosen)


Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def forward(problem: Problem, q: Layout, k: Layout, v: Layout) -> Forward:
    """Return a call (Q, K, V) that returns the output (shape, dtype of Q) and log-sum-exp (…, n_queries), fp32."""
    rows = (*problem.leading, problem.n_queries)
    if problem.fills_hopper:
        keys_per_split, n_splits, attend = problem.n_keys, 1, gluon_launches.forward(problem, q, k, v)
    else:
        keys_per_split = problem.split("forward", COMBINED_ROWS)
        n_splits = triton.cdiv(problem.n_keys, keys_per_split)
        attend = _attend(problem, q, k, v, keys_per_split, n_splits)

    def whole(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, logsumexp = problem.empty(*rows, problem.head_dim, dtype=problem.dtype), problem.empty(*rows)
        attend(q, k, v, out, logsumexp)
        return out, logsumexp

    combine = Launch(
        combine_kernel,
        (triton.cdiv(problem.n_queries, COMBINED_ROWS) * problem.sequences,),
        (None,) * 4,
        (problem.sequences, problem.n_queries, problem.n_keys, problem.head_dim, keys_per_split, n_splits),
        {"ROWS": COMBINED_ROWS, "COLS": problem.cols, "CAUSAL": problem.causal},
    )

    def split(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        parts, logsumexps = problem.empty(n_splits, *rows, problem.head_dim), problem.empty(n_splits, *rows)
        attend(q, k, v, parts, logsumexps)
        out, logsumexp = problem.empty(*rows, problem.head_dim, dtype=problem.dtype), problem.empty(*rows)
        combine(parts, logsumexps, out, logsumexp)
        return out, logsumexp

    return split if n_splits > 1 else whole


def _attend(problem: Problem, q: Layout, k: Layout, v: Layout, keys_per_split: int, n_splits: int) -> Launch:
    tile = problem.tile("forward")
    cols = problem.cols
    return Launch(
        forward_kernel,
        (triton.cdiv(problem.n_queries, tile.kept) * problem.sequences, n_splits),
        (
            q.box(tile.kept, cols, tile.tma), *(x.box(tile.streamed, cols, tile.tma) for x in (k, v)), None, None,
        ),
        (
            *q.strides, *k.strides, *v.strides, problem.heads, problem.sequences, problem.together,
            problem.n_queries, problem.n_keys, problem.head_dim, keys_per_split, problem.factor, 1.0,
        ),
        {
            "BLOCK_M": tile.kept, "BLOCK_N": tile.streamed, "BLOCK_D": cols, "CAUSAL": problem.causal,
            "SPLIT": n_splits > 1, "WHOLE_M": problem.n_queries % tile.kept == 0,
            "WHOLE_N": problem.n_keys % tile.streamed == 0, "WHOLE_D": problem.head_dim == cols, "TMA": tile.tma,
            "HELD": tile.held, "PRECISION": problem.precision, "WIDEN": problem.interpreted,
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
