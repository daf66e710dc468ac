# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton kernels of the backward pass: FlashAttention-2, algorithm 2 (arXiv 2307.08691), in one pass or in two.

With P = exp(S - L) the tile of weights, recomputed from scores S and log-sum-exp L, and D = rowsum(dO ∘ O):
dV = Pᵀ dO, dS = P ∘ (dO Vᵀ - D), dK = dSᵀ Q, dQ = dS K, each times the scale of the scores where S carries it.

dkdv_kernel holds a tile of keys and works on transposed tiles (keys × queries), so that Pᵀ and dSᵀ are left factors
already in registers. It computes dK and dV, and optionally accumulates dQ too (one pass, five products). dq_kernel
holds a tile of queries and computes dQ (second of two passes, seven products in total).

L (in base 2) and D come from prepare_kernel, padded to whole tiles with L = ∞, D = 0: rows beyond the queries then have
weight 0 without a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

from perfscribe.attention.triton_tiles import (
    add_product,
    left_factor,
    product,
    read_row_terms,
    read_tile,
    row_of_head,
    tile_and_sequence,
    write_tile,
)

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def prepare_kernel(
    out, d_out, logsumexp, terms, dq_sum, copy,
    stride_gb, stride_gh, stride_gn, stride_gd,
    n_heads, n_sequences, n_queries, n_padded, width,
    ROWS: tl.constexpr, COLS: tl.constexpr, CLEAR_DQ: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Write to terms (2, sequences, n_padded): the log-sum-exp in base 2, and D = rowsum(dO ∘ O).

    Grid: (n_padded / ROWS × sequences,). out is contiguous; d_out has any strides, including 0. CLEAR_DQ: also zero the
    rows of dq_sum (sequences, n_padded, width), for a kernel that adds to them. COPY: also copy d_out in out's layout.
    """
    tiles = n_padded // ROWS
    sequence = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    inside = row < n_queries
    cell = inside[:, None] & (col < width)[None, :]
    first = sequence.to(tl.int64) * n_queries
    offset = first * width + row[:, None] * width + col[None, :]
    o = tl.load(out + offset, mask=cell, other=0.0).to(tl.float32)
    d_rows = row_of_head(d_out, sequence // n_heads, sequence % n_heads, stride_gb, stride_gh, False)
    d_rows += row.to(tl.int64)[:, None] * stride_gn + col.to(tl.int64)[None, :] * stride_gd
    given = tl.load(d_rows, mask=cell, other=0.0)
    if COPY:
        tl.store(copy + offset, given, mask=cell)
    do = given.to(tl.float32)
    peak = tl.load(logsumexp + first + row, mask=inside, other=float("inf"))
    padded = sequence.to(tl.int64) * n_padded
    tl.store(terms + padded + row, peak * LOG2_E)
    tl.store(terms + (n_sequences + sequence).to(tl.int64) * n_padded + row, tl.sum(o * do, 1))
    if CLEAR_DQ:
        zero = tl.zeros([ROWS, COLS], dtype=tl.float32)
        tl.store(dq_sum + padded * width + row[:, None] * width + col[None, :], zero, mask=(col < width)[None, :])


@triton.jit
def _walk_queries(
    dk, dv, k, k_left, v_left, q_rows, do_rows, dq_rows, terms, sequence, n_sequences, n_padded, batch, head, low,
    high, key, n_queries, n_keys, width,
    stride_q, stride_g,
    factor,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr, CAUSAL_MASK: tl.constexpr,
    TAIL_MASK: tl.constexpr, WHOLE_ROWS: tl.constexpr, WHOLE_COLS: tl.constexpr, DQ: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the contribution of queries low … high to dk and dv of one tile of keys, and to dQ if requested."""
    row = tl.arange(0, BLOCK_M)
    for start in tl.range(low, high, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        q = read_tile(
            q_rows, batch, head, start, n_queries, width, stride_q, BLOCK_M, BLOCK_D, TMA, WHOLE_ROWS, WHOLE_COLS
        )
        do = read_tile(
            do_rows, batch, head, start, n_queries, width, stride_g, BLOCK_M, BLOCK_D, TMA, WHOLE_ROWS, WHOLE_COLS
        )
        peak = read_row_terms(terms, sequence, n_padded, start, BLOCK_M, TMA)
        scores = product(k_left, tl.trans(q), PRECISION, WIDEN)
        weights = tl.exp2(scores * factor - peak[None, :])
        if CAUSAL_MASK:
            weights = tl.where((key - start)[:, None] <= row[None, :], weights, 0.0)
        if TAIL_MASK:
            weights = tl.where((key < n_keys)[:, None], weights, 0.0)
        # The compiler waits right after a product that the loop reads, but lets an accumulation run on. So dV comes
        # after the inputs of dS, and dK after dQ: they overlap with computing dS and with writing dQ.
        d_weights = product(v_left, tl.trans(do), PRECISION, WIDEN)
        if DQ != "none":
            dv = add_product(dv, weights.to(do.dtype), do, PRECISION, WIDEN)
        delta = read_row_terms(terms, n_sequences + sequence, n_padded, start, BLOCK_M, TMA)
        d_scores = (weights * (d_weights - delta[None, :])).to(q.dtype)
        if DQ == "none":
            # there is no wait in between here, so dV must not be in flight while dS, the factor of dK, is computed
            dv = add_product(dv, weights.to(do.dtype), do, PRECISION, WIDEN)
            dk = add_product(dk, d_scores, q, PRECISION, WIDEN)
        else:
            dq = product(tl.trans(d_scores), k, PRECISION, WIDEN)
            dk = add_product(dk, d_scores, q, PRECISION, WIDEN)
            if DQ == "tma":
                dq_rows.atomic_add([sequence * n_padded + start, 0], dq)
            else:
                col = tl.arange(0, BLOCK_D)
                offset = (start + row)[:, None] * width + col[None, :]
                if WHOLE_COLS:
                    tl.atomic_add(dq_rows + offset, dq, sem="relaxed")
                else:
                    tl.atomic_add(dq_rows + offset, dq, mask=(col < width)[None, :], sem="relaxed")
    return dk, dv


@triton.jit
def dkdv_kernel(
    q, k, v, d_out, terms, dq_sum, dk, dv,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_gb,
    stride_gh, stride_gn,
    n_heads, n_sequences, together, n_queries, n_padded, n_keys, width, queries_per_split, scale, factor, one,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, HELD: tl.constexpr,
    DQ: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one sequence against the queries of one split.

    Grid: (tiles of keys × sequences, splits); the first keys, which most queries see when causal, come first, of
    `together` sequences at a time. dk and dv are (splits, sequences, n_keys, width); splits that do not contribute to a
    tile are left unwritten. terms is prepare_kernel's output or, for TMA, a descriptor of (2 × sequences, n_padded)
    with a box of 1 × BLOCK_M. DQ: "none", or how dQ / scale is added to dq_sum, fp32: "tma" (dq_sum is a descriptor of
    (sequences × n_padded, width), its box BLOCK_M × BLOCK_D) or "atomics" (a pointer). n_padded is a multiple of
    BLOCK_M.
    """
    tiles = tl.cdiv(n_keys, BLOCK_N)
    place, sequence = tile_and_sequence(tl.program_id(0), tiles, n_sequences, together)
    first = place * BLOCK_N
    batch = sequence // n_heads
    head = sequence % n_heads
    split = tl.program_id(1)

    low = split * queries_per_split
    high = tl.minimum(low + queries_per_split, n_queries)
    if CAUSAL:
        low = tl.maximum(low, (first // BLOCK_M) * BLOCK_M)
    if SPLIT and low >= high:
        return
    key = first + tl.arange(0, BLOCK_N)
    k_rows = row_of_head(k, batch, head, stride_kb, stride_kh, TMA)
    k_tile = read_tile(k_rows, batch, head, first, n_keys, width, stride_kn, BLOCK_N, BLOCK_D, TMA, WHOLE_N, WHOLE_D)
    v_rows = row_of_head(v, batch, head, stride_vb, stride_vh, TMA)
    v_tile = read_tile(v_rows, batch, head, first, n_keys, width, stride_vn, BLOCK_N, BLOCK_D, TMA, WHOLE_N, WHOLE_D)
    k_left = left_factor(k_tile, one, HELD > 0)
    v_left = left_factor(v_tile, one, HELD > 1)
    q_rows = row_of_head(q, batch, head, stride_qb, stride_qh, TMA)
    do_rows = row_of_head(d_out, batch, head, stride_gb, stride_gh, TMA)
    dq_rows = dq_sum
    if DQ == "atomics":
        dq_rows = dq_sum + sequence.to(tl.int64) * n_padded * width
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    # below the diagonal every query of a tile sees all keys of this tile
    edge = low
    if CAUSAL:
        edge = tl.minimum(tl.maximum(low, tl.cdiv(first + BLOCK_N - 1, BLOCK_M) * BLOCK_M), high)
        dk_tile, dv_tile = _walk_queries(
            dk_tile, dv_tile, k_tile, k_left, v_left, q_rows, do_rows, dq_rows, terms,
            sequence, n_sequences, n_padded, batch, head,
            low, edge, key, n_queries, n_keys, width, stride_qn, stride_gn, factor, BLOCK_M, BLOCK_D, TMA,
            True, not WHOLE_N, WHOLE_M, WHOLE_D, DQ, PRECISION, WIDEN,
        )  # fmt: skip
    dk_tile, dv_tile = _walk_queries(
        dk_tile, dv_tile, k_tile, k_left, v_left, q_rows, do_rows, dq_rows, terms,
        sequence, n_sequences, n_padded, batch, head,
        edge, high, key, n_queries, n_keys, width, stride_qn, stride_gn, factor, BLOCK_M, BLOCK_D, TMA,
        False, not WHOLE_N, WHOLE_M, WHOLE_D, DQ, PRECISION, WIDEN,
    )  # fmt: skip
    rows = (split * n_sequences + sequence).to(tl.int64) * n_keys
    written = n_keys
    if SPLIT:
        written = tl.where(low < high, n_keys, 0)
    whole: tl.constexpr = WHOLE_N and not SPLIT
    write_tile(dk + rows * width, dk_tile * scale, first, written, width, BLOCK_N, BLOCK_D, whole, WHOLE_D)
    write_tile(dv + rows * width, dv_tile, first, written, width, BLOCK_N, BLOCK_D, whole, WHOLE_D)


@triton.jit
def _walk_keys(
    dq, q, do, peak, delta, k_rows, v_rows, batch, head, low, high, query, n_keys, width,
    stride_k, stride_v,
    factor,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr, CAUSAL_MASK: tl.constexpr,
    TAIL_MASK: tl.constexpr, WHOLE_COLS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the contribution of keys low … high to dq of one tile of queries."""
    key = tl.arange(0, BLOCK_N)
    for start in tl.range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = read_tile(
            k_rows, batch, head, start, n_keys, width, stride_k, BLOCK_N, BLOCK_D, TMA, not TAIL_MASK, WHOLE_COLS
        )
        scores = product(q, tl.trans(k), PRECISION, WIDEN)
        weights = tl.exp2(scores * factor - peak[:, None])
        if CAUSAL_MASK:
            weights = tl.where((query - start)[:, None] >= key[None, :], weights, 0.0)
        if TAIL_MASK:
            weights = tl.where((n_keys - start) > key[None, :], weights, 0.0)
        v = read_tile(
            v_rows, batch, head, start, n_keys, width, stride_v, BLOCK_N, BLOCK_D, TMA, not TAIL_MASK, WHOLE_COLS
        )
        d_weights = product(do, tl.trans(v), PRECISION, WIDEN)
        d_scores = (weights * (d_weights - delta[:, None])).to(k.dtype)
        dq = add_product(dq, d_scores, k, PRECISION, WIDEN)
    return dq


@triton.jit
def dq_kernel(
    q, k, v, d_out, terms, dq,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_gb,
    stride_gh, stride_gn,
    n_heads, n_sequences, together, n_queries, n_padded, n_keys, width, keys_per_split, scale, factor, one,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, HELD: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence against the keys of one split: dq (splits, sequences, n_queries, width).

    Grid and order as in forward_kernel. n_padded is a multiple of BLOCK_M.
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
    d_out_rows = row_of_head(d_out, batch, head, stride_gb, stride_gh, TMA)
    do_tile = read_tile(
        d_out_rows, batch, head, first, n_queries, width, stride_gn, BLOCK_M, BLOCK_D, TMA, WHOLE_M, WHOLE_D
    )
    q_tile = left_factor(q_tile, one, HELD > 0)
    do_tile = left_factor(do_tile, one, HELD > 1)
    k_rows = row_of_head(k, batch, head, stride_kb, stride_kh, TMA)
    v_rows = row_of_head(v, batch, head, stride_vb, stride_vh, TMA)
    result = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    peak = read_row_terms(terms, sequence, n_padded, first, BLOCK_M, False)
    delta = read_row_terms(terms, n_sequences + sequence, n_padded, first, BLOCK_M, False)
    edge = (n_keys // BLOCK_N) * BLOCK_N
    if CAUSAL:
        edge = tl.minimum(edge, (first // BLOCK_N) * BLOCK_N)
    edge = tl.maximum(tl.minimum(edge, high), low)
    result = _walk_keys(
        result, q_tile, do_tile, peak, delta, k_rows, v_rows, batch, head, low, edge, query, n_keys, width,
        stride_kn, stride_vn, factor, BLOCK_N, BLOCK_D, TMA, False, False, WHOLE_D, PRECISION, WIDEN,
    )  # fmt: skip
    if CAUSAL or not WHOLE_N:
        result = _walk_keys(
            result, q_tile, do_tile, peak, delta, k_rows, v_rows, batch, head, edge, high, query, n_keys, width,
            stride_kn, stride_vn, factor, BLOCK_N, BLOCK_D, TMA, CAUSAL, not WHOLE_N, WHOLE_D,
            PRECISION, WIDEN,
        )  # fmt: skip
    rows = (split * n_sequences + sequence).to(tl.int64) * n_queries
    written = n_queries
    if SPLIT:
        written = tl.where(low < high, n_queries, 0)
    whole: tl.constexpr = WHOLE_M and not SPLIT
    write_tile(dq + rows * width, result * scale, first, written, width, BLOCK_M, BLOCK_D, whole, WHOLE_D)


@triton.jit
def sum_kernel(
    parts, other_parts, out, other_out, n_sequences, n_rows, n_part_rows, width, n_streamed, rows_per_split,
    n_splits, scale,
    ROWS: tl.constexpr, COLS: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """out = scale · the sum, in order, of the splits that contribute to a tile of rows, cast to out's dtype.

    Grid: (tiles of rows × sequences, 1), or 2 to sum the other tensors too, which have the same shapes. parts (splits,
    sequences, n_part_rows, width) fp32, out (sequences, n_rows, width). SEEN: "all" splits; "up_to" the row's own
    split, as queries see keys; "from" the row's own, as keys are seen. rows_per_split is a multiple of ROWS; n_streamed
    is the length that was split.
    """
    if tl.program_id(1) == 1:
        parts, out = other_parts, other_out
    tiles = tl.cdiv(n_rows, ROWS)
    sequence = tl.program_id(0) // tiles
    first = (tl.program_id(0) % tiles) * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    cell = (row < n_rows)[:, None] & (col < width)[None, :]
    offset = row[:, None] * width + col[None, :]
    begin = 0
    end = n_splits
    if SEEN == "up_to":
        end = tl.minimum(n_splits, first // rows_per_split + 1)
    if SEEN == "from":
        begin = tl.where(first < n_streamed, first // rows_per_split, n_splits)
    result = tl.zeros([ROWS, COLS], dtype=tl.float32)
    for split in range(begin, end):
        rows = (split * n_sequences + sequence).to(tl.int64) * n_part_rows
        result += tl.load(parts + rows * width + offset, mask=cell, other=0.0)
    target = out + sequence.to(tl.int64) * n_rows * width
    tl.store(target + offset, (result * scale).to(out.dtype.element_ty), mask=cell)
