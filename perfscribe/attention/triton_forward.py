"""The forward pass in Triton: choice of tiles and splits, and the launches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from perfscribe.attention import triton_configs
from perfscribe.attention.triton_forward_kernels import combine_kernel, forward_kernel
from perfscribe.attention.triton_operands import Operand, launch_options
from perfscribe.attention.triton_splits import Walks, split_length

COMBINED_ROWS = 16
GROUP_BYTES = 32 * 2**20  # well within the L2 of a data-centre GPU


@dataclass(frozen=True)
class Problem:
    """The sizes and choices that all kernels of one call share."""

    batch: int
    heads: int
    n_queries: int
    n_keys: int
    head_dim: int
    causal: bool
    dtype: torch.dtype
    device: torch.device
    interpreted: bool
    settings: triton_configs.Settings

    @property
    def sequences(self) -> int:
        """Independent attention problems: batch × heads."""
        return self.batch * self.heads

    @property
    def together(self) -> int:
        """Sequences whose programs mix, see tile_and_sequence: as many as GROUP_BYTES hold the streamed rows of."""
        row_bytes = 2 * self.head_dim * self.dtype.itemsize
        fit = GROUP_BYTES // (max(self.n_queries, self.n_keys) * row_bytes)
        return min(self.sequences, max(1, fit))

    @property
    def cols(self) -> int:
        """Columns of a tile: the head dimension, rounded up to a power of two."""
        return int(triton.next_power_of_2(self.head_dim))

    @property
    def scale(self) -> float:
        """What scores are multiplied with before softmax."""
        return float(self.head_dim**-0.5)

    @property
    def factor(self) -> float:
        """The scale for softmax in base 2."""
        return self.scale * math.log2(math.e)

    @property
    def precision(self) -> str:
        """Triton's input_precision of the products."""
        if self.dtype != torch.float32:
            return "tf32"  # Triton's default, without meaning for 16-bit factors
        return triton_configs.float32_precision(self.settings.float32_products)

    @property
    def widen(self) -> bool:
        """Whether products must be made of fp32 copies, as in the interpreter, which knows no bf16."""
        return self.interpreted

    def tile(self, kernel: triton_configs.Kernel) -> triton_configs.Tile:
        """The tile of a kernel."""
        length = max(self.n_queries, self.n_keys)
        return triton_configs.tile_for(kernel, self.head_dim, length, self.dtype, self.precision, self.settings.tiles)

    def split(self, kernel: triton_configs.Kernel, whole: int) -> int:
        """Rows of one split of the dimension that a kernel streams; a multiple of `whole`."""
        tile = self.tile(kernel)
        upwards = kernel in ("forward", "dq")
        owned, streamed = (self.n_queries, self.n_keys) if upwards else (self.n_keys, self.n_queries)
        unit = max(tile.own, tile.streamed, whole)
        walks = Walks(owned, streamed, tile.own, unit, self.sequences, self.causal, upwards)
        chosen = (self.settings.splits or {}).get(kernel)
        return split_length(walks, triton_configs.multiprocessors(self.device), tile.warps, chosen)


def forward(problem: Problem, q: Operand, k: Operand, v: Operand) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, n_queries, d) and log-sum-exp (batch, heads, n_queries), fp32."""
    shape = (problem.batch, problem.heads, problem.n_queries)
    out = torch.empty((*shape, problem.head_dim), dtype=problem.dtype, device=problem.device)
    logsumexp = torch.empty(shape, dtype=torch.float32, device=problem.device)
    keys_per_split = problem.split("forward", COMBINED_ROWS)
    n_splits = triton.cdiv(problem.n_keys, keys_per_split)
    if n_splits == 1:
        _attend(problem, q, k, v, out, logsumexp, keys_per_split, 1)
        return out, logsumexp
    parts = torch.empty((n_splits, *out.shape), dtype=torch.float32, device=problem.device)
    logsumexps = torch.empty((n_splits, *shape), dtype=torch.float32, device=problem.device)
    _attend(problem, q, k, v, parts, logsumexps, keys_per_split, n_splits)
    combine_kernel[(triton.cdiv(problem.n_queries, COMBINED_ROWS) * problem.sequences,)](
        parts, logsumexps, out, logsumexp, problem.sequences, problem.n_queries, problem.n_keys, problem.head_dim,
        keys_per_split, n_splits, ROWS=COMBINED_ROWS, COLS=problem.cols, CAUSAL=problem.causal,
    )  # fmt: skip
    return out, logsumexp


def _attend(
    problem: Problem,
    q: Operand,
    k: Operand,
    v: Operand,
    out: Tensor,
    logsumexp: Tensor,
    keys_per_split: int,
    n_splits: int,
) -> None:
    tile = problem.tile("forward")
    cols = problem.cols
    forward_kernel[(triton.cdiv(problem.n_queries, tile.own) * problem.sequences, n_splits)](
        q.argument(tile.own, cols, tile.tma),
        k.argument(tile.streamed, cols, tile.tma),
        v.argument(tile.streamed, cols, tile.tma),
        out, logsumexp, *q.strides, *k.strides, *v.strides,
        problem.heads, problem.sequences, problem.together, problem.n_queries, problem.n_keys, problem.head_dim,
        keys_per_split, problem.factor,
        BLOCK_M=tile.own, BLOCK_N=tile.streamed, BLOCK_D=cols, CAUSAL=problem.causal, SPLIT=n_splits > 1,
        WHOLE_M=problem.n_queries % tile.own == 0, WHOLE_N=problem.n_keys % tile.streamed == 0,
        WHOLE_D=problem.head_dim == cols, TMA=tile.tma,
        AHEAD=tile.ahead, PRECISION=problem.precision, WIDEN=problem.widen, **launch_options(tile),
    )  # fmt: skip
