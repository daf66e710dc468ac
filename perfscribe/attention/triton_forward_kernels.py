# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton kernels of the forward pass: FlashAttention-2, algorithm 1 (arXiv 2307.08691).

Scores are in base 2: with scale·log₂e folded into one factor, exp(s·scale) is exp2(s·factor). Each program holds one
tile of queries and iterates over the tiles of keys that it sees.
"""

from __future__ import annotations

import triton
import triton.language as tl

from perfscribe.attention.triton_tiles import (
    add_product,
    left_factor,
    product,
    read_tile,
    row_of_head,
    tile_and_sequence,
    write_tile,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _attend(
    out, total, peak, q, k_rows, v_rows, batch, head, low, high, query, n_keys, width,
    stride_k, stride_v,
    factor,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr, CAUSAL_MASK: tl.constexpr,
    TAIL_MASK: tl.constexpr, WHOLE_COLS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys low … high; peak is the row's greatest score so far, times factor."""
    key = tl.arange(0, BLOCK_N)
    for start in tl.range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = read_tile(
            k_rows, batch, head, start, n_keys, width, stride_k, BLOCK_N, BLOCK_D, TMA, not TAIL_MASK, WHOLE_COLS
        )
        scores = product(q, tl.trans(k), PRECISION, WIDEN)
        if CAUSAL_MASK:
            scores = tl.where((query - start)[:, None] >= key[None, :], scores, float("-inf"))
        if TAIL_MASK:
            scores = tl.where((n_keys - start) > key[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - higher[:, None])
        rescale = tl.exp2(peak - higher)
        total = total * rescale + tl.sum(weights, 1)
        out = out * rescale[:, None]
        v = read_tile(
            v_rows, batch, head, start, n_keys, width, stride_v, BLOCK_N, BLOCK_D, TMA, not TAIL_MASK, WHOLE_COLS
        )
        out = add_product(out, weights.to(v.dtype), v, PRECISION, WIDEN)
        peak = higher
    return out, total, peak


@triton.jit
def forward_kernel(
    q, k, v, out, logsumexp,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    n_heads, n_sequences, together, n_queries, n_keys, width, keys_per_split, factor, one,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, HELD: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence (batch, head) against the keys of one split.

    Grid: (tiles of queries × sequences, splits). The last rows, which see most keys when causal, come first, of
    `together` sequences at a time. out and logsumexp are (splits, sequences, n_queries, width) and (splits, sequences,
    n_queries): the result itself for one split, else each split's softmax for combine_kernel. Splits that a tile does
    not see are left unwritten.
    """
    tiles = tl.cdiv(n_queries, BLOCK_M)
    place, sequence = tile_and_sequence(tl.program_id(0), tiles, n_sequences, together)
    first = (tiles - 1 - place) * BLOCK_M
    batch = sequence // n_heads
    head = sequence % n_heads
    split = tl.program_id(1)

    low = split * keys_per_split
    high = tl.minimum(low + keys_per_split, n_keys)
    if CAUSAL:
        high = tl.minimum(high, first + BLOCK_M)
    if SPLIT and low >= high:
        return
    query = first + tl.arange(0, BLOCK_M)
    q_rows = row_of_head(q, batch, head, stride_qb, stride_qh, TMA)
    q_tile = read_tile(q_rows, batch, head, first, n_queries, width, stride_qn, BLOCK_M, BLOCK_D, TMA, WHOLE_M, WHOLE_D)
    q_tile = left_factor(q_tile, one, HELD > 0)
    k_rows = row_of_head(k, batch, head, stride_kb, stride_kh, TMA)
    v_rows = row_of_head(v, batch, head, stride_vb, stride_vh, TMA)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    # tiles below the diagonal and inside the keys need no mask
    edge = (n_keys // BLOCK_N) * BLOCK_N
    if CAUSAL:
        edge = tl.minimum(edge, (first // BLOCK_N) * BLOCK_N)
    edge = tl.maximum(tl.minimum(edge, high), low)
    result, total, peak = _attend(
        result, total, peak, q_tile, k_rows, v_rows, batch, head, low, edge, query, n_keys, width,
        stride_kn, stride_vn, factor, BLOCK_N, BLOCK_D, TMA, False, False, WHOLE_D, PRECISION, WIDEN,
    )  # fmt: skip
    if CAUSAL or not WHOLE_N:
        result, total, peak = _attend(
            result, total, peak, q_tile, k_rows, v_rows, batch, head, edge, high, query, n_keys, width,
            stride_kn, stride_vn, factor, BLOCK_N, BLOCK_D, TMA, CAUSAL, not WHOLE_N, WHOLE_D, PRECISION, WIDEN,
        )  # fmt: skip
    rows = (split * n_sequences + sequence).to(tl.int64) * n_queries
    written = n_queries
    if SPLIT:
        written = tl.where(low < high, n_queries, 0)
    whole: tl.constexpr = WHOLE_M and not SPLIT
    write_tile(out + rows * width, result / total[:, None], first, written, width, BLOCK_M, BLOCK_D, whole, WHOLE_D)
    tl.store(logsumexp + rows + query, (peak + tl.log2(total)) * LN_2, mask=query < written)


@triton.jit
def combine_kernel(
    parts, logsumexps, out, logsumexp, n_sequences, n_queries, n_keys, width, keys_per_split, n_splits,
    ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one tile of rows: softmaxes over disjoint keys, weighted by exp(their log-sum-exp).

    Grid: (tiles of rows × sequences,). keys_per_split is a multiple of ROWS, so all rows of a tile see the same splits.
    """
    tiles = tl.cdiv(n_queries, ROWS)
    sequence = tl.program_id(0) // tiles
    first = (tl.program_id(0) % tiles) * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    inside = row < n_queries
    cell = inside[:, None] & (col < width)[None, :]
    offset = row[:, None] * width + col[None, :]
    if CAUSAL:
        n_splits = tl.minimum(first, n_keys - 1) // keys_per_split + 1

    peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    result = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for split in range(0, n_splits):
        rows = (split * n_sequences + sequence).to(tl.int64) * n_queries
        part_logsumexp = tl.load(logsumexps + rows + row, mask=inside, other=0.0)
        higher = tl.maximum(peak, part_logsumexp)
        rescale = tl.exp(peak - higher)
        weight = tl.exp(part_logsumexp - higher)
        part = tl.load(parts + rows * width + offset, mask=cell, other=0.0)
        result = result * rescale[:, None] + part * weight[:, None]
        total = total * rescale + weight
        peak = higher
    rows = sequence.to(tl.int64) * n_queries
    tl.store(out + rows * width + offset, (result / total[:, None]).to(out.dtype.element_ty), mask=cell)
    tl.store(logsumexp + rows + row, peak + tl.log(total), mask=inside)
