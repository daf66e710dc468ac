# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Functions that the Triton kernels share: reading and writing tiles, and products of tiles.

A tile is ROWS × COLS; COLS is the head dimension rounded up to a power of two. Elements outside the tensor read as
zero. A source is either a host-side TMA descriptor of the whole (batch, heads, n, d) tensor, whose bounds the hardware
checks, or a pointer to row 0 of one head.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_and_sequence(program, tiles, n_sequences, together):
    """Return the tile and the sequence that a program works on.

    Tile by tile rather than sequence by sequence: if the first tiles have the most work, as under a causal mask, the
    programs that end last are short. Sequences come in groups of `together`, few enough for L2.
    """
    first = program // (tiles * together) * together
    rest = program % (tiles * together)
    members = tl.minimum(n_sequences - first, together)
    return rest // members, first + rest % members


@triton.jit
def row_of_head(source, batch, head, stride_batch, stride_head, TMA: tl.constexpr):
    """Return read_tile's source: a descriptor unchanged, a pointer moved to its head (64-bit arithmetic)."""
    if TMA:
        return source
    else:
        return source + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head


@triton.jit
def read_tile(
    source, batch, head, start, length, width, stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, TMA: tl.constexpr, WHOLE_ROWS: tl.constexpr, WHOLE_COLS: tl.constexpr,
):  # fmt: skip
    """Return rows start … start + ROWS of one head; WHOLE_*: the tile is within bounds, so that no mask is needed."""
    if TMA:
        return tl.reshape(source.load([batch, head, start, 0]), [ROWS, COLS])
    else:
        rows = start + tl.arange(0, ROWS)
        cols = tl.arange(0, COLS)
        pointers = source + rows[:, None] * stride + cols[None, :]
        if WHOLE_ROWS and WHOLE_COLS:
            return tl.load(pointers)
        elif WHOLE_COLS:
            return tl.load(pointers, mask=rows[:, None] < length, other=0.0)
        elif WHOLE_ROWS:
            return tl.load(pointers, mask=cols[None, :] < width, other=0.0)
        else:
            return tl.load(pointers, mask=(rows[:, None] < length) & (cols[None, :] < width), other=0.0)


@triton.jit
def read_row_terms(source, line, length, start, ROWS: tl.constexpr, TMA: tl.constexpr):
    """Return numbers start … start + ROWS of one line, fp32: (ROWS,). No bounds: lines are padded to whole tiles.

    source: a descriptor of (lines, length) with a box of 1 × ROWS, or a pointer.
    """
    if TMA:
        return tl.reshape(source.load([line, start]), [ROWS])
    else:
        return tl.load(source + line.to(tl.int64) * length + start + tl.arange(0, ROWS))


@triton.jit
def write_tile(
    target, tile, start, length, width,
    ROWS: tl.constexpr, COLS: tl.constexpr, WHOLE_ROWS: tl.constexpr, WHOLE_COLS: tl.constexpr,
):  # fmt: skip
    """Write the part of a tile within (length, width), row-major from target, in the target's dtype."""
    rows = start + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    pointers = target + rows[:, None] * width + cols[None, :]
    value = tile.to(target.dtype.element_ty)
    if WHOLE_ROWS and WHOLE_COLS:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=(rows[:, None] < length) & (cols[None, :] < width))


@triton.jit
def left_factor(tile, one, HELD: tl.constexpr):
    """Return a tile for use as left factor in a loop; HELD: multiplied by `one` (= 1), so that it stays in registers.

    Triton reads left factors that were loaded from shared memory, whose bandwidth the right factors need.
    """
    if HELD:
        return (tile.to(tl.float32) * one).to(tile.dtype)
    else:
        return tile


@triton.jit
def product(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """a b in fp32. WIDEN: the interpreter multiplies the bit patterns of bf16, so factors are converted to fp32."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """total + a b in fp32, like product."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)
