# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Gluon kernels for Hopper GPUs and tensors of 16 bits with many rows: FlashAttention-3's schedule (arXiv 2407.08608).

Mathematics and notation are those of triton_forward_kernels and triton_backward_kernels (one pass). Each of two groups
of warps computes softmax while its own previous product, or the other group's, runs on the tensor cores.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from perfscribe.attention.gluon_tiles import (
    GROUP_REGISTERS,
    GROUP_ROWS,
    HALF,
    LINE,
    READER_REGISTERS,
    SINGLE,
    add_tile,
    await_buffer,
    await_release,
    await_tile,
    make_barriers,
    read_tile,
    release_tile,
    tile_at,
    write_tile,
)
from perfscribe.attention.triton_tiles import tile_and_sequence

LN_2 = gl.constexpr(0.6931471805599453)
GROUP_COLS = gl.constexpr(64)  # of a group's product for dQ
ROWS = gl.constexpr(128)  # of a program: queries in forward_kernel, keys in backward_kernel; also keys of a tile
BUFFERS = gl.constexpr(2)


@gluon.constexpr_function
def accumulator(cols):
    """Return the layout of a group's product of 64 × cols."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, cols, 16])


@gluon.jit
def _read_keys(q, k, v, rings, batch, head, first, n_tiles):
    q_ring, k_ring, v_ring = rings
    for group in gl.static_range(2):
        read_tile(q_ring, group, q, [batch, head, first + group * GROUP_ROWS, 0])
    for i in range(n_tiles):
        row = (n_tiles - 1 - i) * ROWS  # last tile first, the only one to be masked
        await_buffer(k_ring, i)
        read_tile(k_ring, i, k, [batch, head, row, 0])
        await_buffer(v_ring, i)
        read_tile(v_ring, i, v, [batch, head, row, 0])


@gluon.jit
def _attend(
    out, logsumexp, rings, turns, sizes, GROUP: gl.constexpr, COLS: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """Online softmax of one group's queries; logsumexp: pointer to the sequence's.

    The groups take turns to multiply, so that one computes softmax while the other's products run.
    """
    q_ring, k_ring, v_ring = rings
    batch, head, first, n_tiles, n_queries, n_keys, factor = sizes
    SCORES: gl.constexpr = accumulator(ROWS)
    OUT: gl.constexpr = accumulator(COLS)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    start = first + GROUP * GROUP_ROWS
    query = start + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, SCORES))
    key = (n_tiles - 1) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, SCORES))
    zero = gl.zeros([GROUP_ROWS, ROWS], gl.float32, SCORES)
    result = gl.zeros([GROUP_ROWS, COLS], gl.float32, OUT)
    q = await_tile(q_ring, GROUP)
    scores = warpgroup_mma(q, await_tile(k_ring, 0).permute((1, 0)), zero, use_acc=False)
    release_tile(k_ring, 0)
    seen = (key < n_keys)[None, :]
    if CAUSAL:
        seen = seen & (query[:, None] >= key[None, :])
    scores = gl.where(seen, scores, float("-inf"))
    peak = gl.max(scores, 1) * factor
    weights = gl.exp2(scores * factor - peak[:, None])
    total = gl.sum(weights, 1)
    left = gl.convert_layout(weights.to(q.dtype), LEFT)
    for i in range(1, n_tiles):
        right = await_tile(k_ring, i).permute((1, 0))
        mbarrier.wait(turns.index(GROUP), (i - 1) & 1)
        ready = warpgroup_mma(q, right, zero, use_acc=False, is_async=True)
        summed = warpgroup_mma(left, await_tile(v_ring, i - 1), result, is_async=True)
        mbarrier.arrive(turns.index(1 - GROUP))
        scores = warpgroup_mma_wait(1, deps=(ready,))
        release_tile(k_ring, i)
        higher = gl.maximum(peak, gl.max(scores, 1) * factor)
        weights = gl.exp2(scores * factor - higher[:, None])
        rescale = gl.exp2(peak - higher)
        total = total * rescale + gl.sum(weights, 1)
        peak = higher
        await_tile(v_ring, i - 1)  # keeps the weights before the wait
        result = warpgroup_mma_wait(0, deps=(summed,))
        release_tile(v_ring, i - 1)
        result = result * gl.convert_layout(rescale, gl.SliceLayout(1, OUT))[:, None]
        left = gl.convert_layout(weights.to(q.dtype), LEFT)
    result = warpgroup_mma(left, await_tile(v_ring, n_tiles - 1), result)
    result = result / gl.convert_layout(total, gl.SliceLayout(1, OUT))[:, None]
    write_tile(out, [batch, head, start, 0], q, result)
    gl.store(logsumexp + query, (peak + gl.log2(total)) * LN_2, mask=query < n_queries)
    tma.store_wait(0)


@gluon.jit
def forward_kernel(
    q, k, v, out, logsumexp, n_heads, n_sequences, together, n_queries, n_keys, factor,
    COLS: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """128 queries of one sequence (batch, head) against all keys; the last queries come first.

    q, k, v, out: descriptors of (batch, heads, rows, d), boxes of 64 (q, out) or 128 rows × COLS. logsumexp: pointer to
    (sequences, n_queries), fp32. Grid: (tiles of queries × sequences,).
    """
    tiles = gl.cdiv(n_queries, ROWS)
    place, sequence = tile_and_sequence(gl.program_id(0), tiles, n_sequences, together)
    first = (tiles - 1 - place) * ROWS
    batch, head = sequence // n_heads, sequence % n_heads
    n_tiles = gl.cdiv(gl.minimum(n_keys, first + ROWS) if CAUSAL else n_keys, ROWS)
    logsumexp += sequence.to(gl.int64) * n_queries
    q_ring = gl.allocate_shared_memory(q.dtype, [2, GROUP_ROWS, COLS], HALF), make_barriers(2, 1), None
    k_tiles = gl.allocate_shared_memory(k.dtype, [BUFFERS, ROWS, COLS], HALF)
    v_tiles = gl.allocate_shared_memory(v.dtype, [BUFFERS, ROWS, COLS], HALF)
    k_ring = k_tiles, make_barriers(BUFFERS, 1), make_barriers(BUFFERS, 2)
    v_ring = v_tiles, make_barriers(BUFFERS, 1), make_barriers(BUFFERS, 2)
    rings = q_ring, k_ring, v_ring
    turns = make_barriers(2, 1)
    mbarrier.arrive(turns.index(0))
    sizes = (batch, head, first, n_tiles, n_queries, n_keys, factor)
    gl.warp_specialize(
        [
            (_attend, (out, logsumexp, rings, turns, sizes, 0, COLS, CAUSAL)),
            (_attend, (out, logsumexp, rings, turns, sizes, 1, COLS, CAUSAL)),
            (_read_keys, (q, k, v, rings, batch, head, first, n_tiles)),
        ],
        [4, 1],
        [GROUP_REGISTERS, READER_REGISTERS],
    )


@gluon.jit
def _read_queries(q, k, v, d_out, terms, rings, batch, head, first, low, n_tiles, sequence, n_sequences, QUERIES):
    k_ring, v_ring, q_ring, do_ring, logsumexp_ring, delta_ring = rings
    read_tile(k_ring, 0, k, [batch, head, first, 0])
    read_tile(v_ring, 0, v, [batch, head, first, 0])
    for i in range(n_tiles):
        row = low + i * QUERIES
        await_buffer(q_ring, i)
        read_tile(logsumexp_ring, i, terms, [sequence, row])
        read_tile(q_ring, i, q, [batch, head, row, 0])
        read_tile(delta_ring, i, terms, [n_sequences + sequence, row])
        read_tile(do_ring, i, d_out, [batch, head, row, 0])


@gluon.jit
def _minus_line(line, unit):
    """Return -line · unit for each row of a group; line: a tile, one number per query."""
    QUERIES: gl.constexpr = line.shape[1]
    SCORES: gl.constexpr = accumulator(QUERIES)
    value = line.reshape([QUERIES]).load(gl.SliceLayout(0, SCORES)) * -unit
    return gl.zeros([GROUP_ROWS, QUERIES], gl.float32, SCORES) + value[None, :]


@gluon.jit
def _walk_queries(
    d_k, d_v, dq_sum, rings, exchanged, dq_tile, sizes, start, end,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Add the contribution of tiles of queries start … end to dk and dv of one group's keys, and to dq_sum."""
    k_ring, v_ring, q_ring, do_ring, logsumexp_ring, delta_ring = rings
    first, low, n_keys, factor, dq_row = sizes
    QUERIES: gl.constexpr = q_ring[0].shape[1]
    COLS: gl.constexpr = q_ring[0].shape[2]
    LEFT: gl.constexpr = gl.DotOperandLayout(0, accumulator(COLS), 2)
    SCORES: gl.constexpr = accumulator(QUERIES)
    # each group multiplies dS K for half the queries or, where there are 64, for half the columns
    HALF_ROW: gl.constexpr = GROUP * (QUERIES - GROUP_ROWS)
    HALF_COL: gl.constexpr = GROUP * (COLS - GROUP_COLS)
    key = first + GROUP * GROUP_ROWS + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, SCORES))
    query = low + gl.arange(0, QUERIES, gl.SliceLayout(0, SCORES))
    k = await_tile(k_ring, 0)
    k_own = k.slice(GROUP * GROUP_ROWS, GROUP_ROWS)
    v_own = tile_at(v_ring, 0).slice(GROUP * GROUP_ROWS, GROUP_ROWS)
    zero = gl.zeros([GROUP_ROWS, GROUP_COLS], gl.float32, accumulator(GROUP_COLS))
    for i in range(start, end):
        q, do = await_tile(q_ring, i), tile_at(do_ring, i)
        minus_logsumexp = _minus_line(tile_at(logsumexp_ring, i), 1.0 / factor)
        minus_delta = _minus_line(tile_at(delta_ring, i), 1.0)
        ready = warpgroup_mma(k_own, q.permute((1, 0)), minus_logsumexp, is_async=True)
        d_ready = warpgroup_mma(v_own, do.permute((1, 0)), minus_delta, is_async=True)
        await_tile(do_ring, i)  # keeps the second product's start before the wait for the first
        weights = gl.exp2(warpgroup_mma_wait(1, deps=(ready,)) * factor)
        if MASKED:
            seen = (key < n_keys)[:, None]
            if CAUSAL:
                seen = seen & (key[:, None] <= (i * QUERIES + query)[None, :])
            weights = gl.where(seen, weights, 0.0)
        await_tile(do_ring, i)  # keeps the weights before the wait
        d_scores = weights * warpgroup_mma_wait(0, deps=(d_ready,))
        dv_sum = warpgroup_mma(gl.convert_layout(weights.to(q.dtype), LEFT), do, d_v, is_async=True)
        d_scores = d_scores.to(q.dtype)
        exchanged[0].index(i % 2).slice(GROUP * GROUP_ROWS, GROUP_ROWS).store(d_scores)
        fence_async_shared()
        release_tile(exchanged, i)
        dk_sum = warpgroup_mma(gl.convert_layout(d_scores, LEFT), q, d_k, is_async=True)
        both = await_release(exchanged, i).slice(HALF_ROW, GROUP_ROWS, 1).permute((1, 0))
        dq = warpgroup_mma(both, k.slice(HALF_COL, GROUP_COLS, 1), zero, use_acc=False, is_async=True)
        d_v, d_k, dq = warpgroup_mma_wait(0, deps=(dv_sum, dk_sum, dq))
        release_tile(q_ring, i)
        add_tile(dq_sum, [dq_row + i * QUERIES + HALF_ROW, HALF_COL], dq_tile, dq)
    return d_k, d_v


@gluon.jit
def _gradients(
    dk, dv, dq_sum, rings, exchanged, dq_tiles, sizes, batch, head, n_masked, n_tiles, scale,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one group's keys, and their share of dq_sum."""
    k_ring, v_ring = rings[0], rings[1]
    COLS: gl.constexpr = k_ring[0].shape[2]
    zero = gl.zeros([GROUP_ROWS, COLS], gl.float32, accumulator(COLS))
    dq_tile = dq_tiles.index(GROUP)
    d_k, d_v = _walk_queries(
        zero, zero, dq_sum, rings, exchanged, dq_tile, sizes, 0, n_masked, GROUP, CAUSAL, True
    )  # fmt: skip
    d_k, d_v = _walk_queries(
        d_k, d_v, dq_sum, rings, exchanged, dq_tile, sizes, n_masked, n_tiles, GROUP, CAUSAL, False
    )  # fmt: skip
    release_tile(k_ring, 0)
    k = await_release(k_ring, 0)
    OWN: gl.constexpr = GROUP * GROUP_ROWS
    write_tile(dk, [batch, head, sizes[0] + OWN, 0], k.slice(OWN, GROUP_ROWS), d_k * scale)
    write_tile(dv, [batch, head, sizes[0] + OWN, 0], v_ring[0].index(0).slice(OWN, GROUP_ROWS), d_v)
    tma.store_wait(0)


@gluon.jit
def backward_kernel(
    q, k, v, d_out, terms, dq_sum, dk, dv, n_heads, n_sequences, together, n_queries, n_padded, n_keys, scale, factor,
    COLS: gl.constexpr, QUERIES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """128 keys of one sequence (batch, head) against all queries, QUERIES at a time; the first keys come first.

    q, k, v, d_out, dk, dv: descriptors of (batch, heads, rows, d), boxes of QUERIES (q, d_out), 128 (k, v) or 64 rows ×
    COLS. terms: of prepare_kernel's (2 × sequences, n_padded), box 1 × QUERIES. dq_sum: of (sequences × n_padded, d),
    fp32, box 64 × 64, to which dQ / scale is added. n_padded: a multiple of QUERIES.
    """
    place, sequence = tile_and_sequence(gl.program_id(0), gl.cdiv(n_keys, ROWS), n_sequences, together)
    first = place * ROWS
    batch, head = sequence // n_heads, sequence % n_heads
    low = first if CAUSAL else 0
    n_tiles = gl.maximum(gl.cdiv(n_queries - low, QUERIES), 0)
    n_masked = gl.minimum(ROWS // QUERIES, n_tiles) if CAUSAL else 0
    n_masked = gl.where(first + ROWS > n_keys, n_tiles, n_masked)
    read, free = make_barriers(1, 2), make_barriers(1, 2)
    k_ring = gl.allocate_shared_memory(k.dtype, [1, ROWS, COLS], HALF), read, free
    v_ring = gl.allocate_shared_memory(v.dtype, [1, ROWS, COLS], HALF), read, free
    read, free = make_barriers(BUFFERS, 4), make_barriers(BUFFERS, 2)
    q_ring = gl.allocate_shared_memory(q.dtype, [BUFFERS, QUERIES, COLS], HALF), read, free
    do_ring = gl.allocate_shared_memory(q.dtype, [BUFFERS, QUERIES, COLS], HALF), read, free
    logsumexp_ring = gl.allocate_shared_memory(gl.float32, [BUFFERS, 1, QUERIES], LINE), read, free
    delta_ring = gl.allocate_shared_memory(gl.float32, [BUFFERS, 1, QUERIES], LINE), read, free
    rings = k_ring, v_ring, q_ring, do_ring, logsumexp_ring, delta_ring
    # dS, released by each group when its half is there
    exchanged = gl.allocate_shared_memory(q.dtype, [2, ROWS, QUERIES], HALF), None, make_barriers(2, 2)
    dq_tiles = gl.allocate_shared_memory(gl.float32, [2, GROUP_ROWS, GROUP_COLS], SINGLE)
    sizes = (first, low, n_keys, factor, sequence * n_padded + low)
    gl.warp_specialize(
        [
            (
                _gradients,
                (dk, dv, dq_sum, rings, exchanged, dq_tiles, sizes, batch, head, n_masked, n_tiles, scale, 0, CAUSAL),
            ),
            (
                _gradients,
                (dk, dv, dq_sum, rings, exchanged, dq_tiles, sizes, batch, head, n_masked, n_tiles, scale, 1, CAUSAL),
            ),
            (
                _read_queries,
                (q, k, v, d_out, terms, rings, batch, head, first, low, n_tiles, sequence, n_sequences, QUERIES),
            ),
        ],
        [4, 1],
        [GROUP_REGISTERS, READER_REGISTERS],
    )
