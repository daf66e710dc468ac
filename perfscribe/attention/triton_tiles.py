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
    """Return the indices (tile, sequence) of a program; a sequence is one head of one batch element.

    tiles: number per sequence. Programs take tile 0 of `together` sequences, few enough for L2, then their tile 1, and
    so on. Callers number tiles from the one with the most work under a causal mask, so the last programs are short.
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
    """Return rows start … start + ROWS - 1 of one head as (ROWS, COLS); zero outside (length, width).

    stride: of rows, in elements. A descriptor uses only batch, head and start; a pointer does not use batch and head.
    WHOLE_ROWS, WHOLE_COLS: all of the tile's rows, all of its columns are in bounds, so pointers need no mask.
    """
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
    """Return (ROWS,) fp32: one number per row of the tile at `start`, from one line of a (lines, length) tensor.

    A line has one number per query of a sequence and is padded to whole tiles: no mask. source: a descriptor of the
    tensor with a box of 1 × ROWS, or a pointer to its start.
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
    """Write a tile to rows start … of a contiguous (length, width) target, clipped, in the target's dtype."""
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
    """Return the tile, to be the left factor of products in a loop; HELD: kept in registers.

    Otherwise Triton reads it from shared memory for each product, and the right factors need that bandwidth. HELD
    multiplies by `one`, which is 1 but known only at run time, so the compiler must keep the product.
    """
    if HELD:
        return (tile.to(tl.float32) * one).to(tile.dtype)
    else:
        return tile


@triton.jit
def product(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """Return the matrix product a b, summed in fp32.

    PRECISION: tl.dot's input_precision, which matters for fp32 factors only. WIDEN: cast factors to fp32 first, because
    Triton's interpreter would multiply the bit patterns of bf16.
    """
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
