# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Tiles in shared memory that one warp reads ahead through TMA, for the Gluon kernels.

Gluon is Triton's language one level lower. With it a program's warps have different work: here two groups of four warps
multiply matrices, each of 64 rows, while one more warp reads tiles for both. A ring is (tiles, read, free): buffers for
tiles, used in turn, and two barriers per buffer. Tile i is in buffer i modulo their number. Tiles that are read or
released together share barriers; a barrier is left out where nothing waits for it, since Triton would reuse its memory.
"""

from __future__ import annotations

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

GROUP_ROWS = gl.constexpr(64)  # of a group of four warps, the least that Hopper's matrix instructions multiply
READER_REGISTERS = gl.constexpr(24)  # of the reading warp
GROUP_REGISTERS = gl.constexpr(240)  # of the second group; the first one has what is left, as many
HALF = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16))
HALF_BOX = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)  # (batch, heads, rows, d)
LINE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32))
SINGLE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32))


@gluon.jit
def make_barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate barriers, each passed when ARRIVALS have come."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def tile_at(ring, i):
    """Return the buffer of tile i."""
    return ring[0].index(i % ring[0].shape[0])


@gluon.jit
def await_buffer(ring, i):
    """Wait until the buffer of tile i is free."""
    tiles, _, free = ring
    BUFFERS: gl.constexpr = tiles.shape[0]
    mbarrier.wait(free.index(i % BUFFERS), (i // BUFFERS & 1) ^ 1)


@gluon.jit
def read_tile(ring, i, source, coordinates):
    """Begin to read tile i into its buffer, which must be free; coordinates: of a box of the descriptor `source`."""
    tiles, read, _ = ring
    buffer = i % tiles.shape[0]
    mbarrier.expect(read.index(buffer), source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, coordinates, read.index(buffer), tiles.index(buffer))


@gluon.jit
def await_tile(ring, i):
    """Return tile i when it has been read.

    A second call for the same tile passes at once. It is a branch, which the assembler moves no arithmetic across:
    without it, arithmetic meant to overlap a matrix product goes behind the wait for that product.
    """
    tiles, read, _ = ring
    BUFFERS: gl.constexpr = tiles.shape[0]
    buffer = i % BUFFERS
    mbarrier.wait(read.index(buffer), i // BUFFERS & 1)
    return tiles.index(buffer)


@gluon.jit
def release_tile(ring, i):
    """Say that this group is done with tile i."""
    tiles, _, free = ring
    mbarrier.arrive(free.index(i % tiles.shape[0]))


@gluon.jit
def await_release(ring, i):
    """Return tile i when both groups have released it."""
    tiles, _, free = ring
    BUFFERS: gl.constexpr = tiles.shape[0]
    mbarrier.wait(free.index(i % BUFFERS), i // BUFFERS & 1)
    return tiles.index(i % BUFFERS)


@gluon.jit
def write_tile(target, coordinates, tile, value):
    """Write to a descriptor through a tile of shared memory."""
    tile.store(value.to(tile.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(target, coordinates, tile)


@builtin
def _async_add(target, coordinates, tile, _semantic=None):
    coordinates = _semantic._convert_to_ir_values(coordinates, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, target.handle, coordinates, tile.handle)


@gluon.jit
def add_tile(target, coordinates, tile, value):
    """Add to a descriptor through a tile of shared memory, by TMA; Gluon itself has no function for this."""
    tma.store_wait(0)  # for what was added before from the same tile
    tile.store(value)
    fence_async_shared()
    _async_add(target, coordinates, tile)
