"""Tiles, variants and splits of the Triton kernels, and how to choose others.

`settings()` returns the current settings; `using(...)` changes them temporarily. A forward pass stores its settings, so
that its backward pass uses the same, whenever and in whichever thread it runs.

| setting          | values                          | meaning                                                |
| float32_products | None, "ieee", "tf32x3", "tf32"  | how fp32 products are computed: float32_precision()    |
| backward         | None, "one_pass", "two_pass"    | None: the default, see backward_for()                  |
| dq_sum           | "tma", "atomics"                | how one_pass adds to dQ: TMA reduction, or atomic adds |
| splits           | None or {kernel: number}        | None: the rule of triton_splits                        |
| tiles            | {kernel: Tile}                  | overrides of the defaults; names are in KERNELS        |

Backward variants: "one_pass" computes five products per tile and accumulates dQ in fp32 in the order in which programs
run, so dQ may differ in the last bits from run to run; "two_pass" computes seven, in a fixed order: it is
deterministic, and used when torch.use_deterministic_algorithms is on. "gluon", the default for many rows on Hopper, is
one_pass in gluon_kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch

Float32Products = Literal["ieee", "tf32x3", "tf32"]
Backward = Literal["one_pass", "two_pass"]
DqSum = Literal["tma", "atomics"]
Kernel = Literal["forward", "one_pass", "dkdv", "dq"]
KERNELS: tuple[Kernel, ...] = ("forward", "one_pass", "dkdv", "dq")


@dataclass(frozen=True)
class Tile:
    """How one kernel is compiled: a program holds `kept` rows and processes `streamed` rows per iteration.

    kept, streamed: powers of two from 16. Kept rows are queries in "forward" and "dq", keys in "dkdv" and "one_pass".
    warps, stages: Triton's num_warps and num_stages. tma: read tiles through TMA descriptors (Hopper and later, or the
    interpreter), else through pointers. held: number of kept tiles that stay in registers, of those that are left
    factors (Q; K and V; or Q and dO), see triton_tiles.left_factor.
    """

    kept: int
    streamed: int
    warps: int = 4
    stages: int = 2
    tma: bool = True
    held: int = 0


@dataclass(frozen=True)
class Settings:
    """Settings, described in the table at the top of this module."""

    float32_products: Float32Products | None = None
    backward: Backward | None = None
    dq_sum: DqSum = "tma"
    splits: Mapping[str, int] | None = None
    tiles: Mapping[str, Tile] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash((self.float32_products, self.backward, self.dq_sum, *(self.splits or ()), *self.tiles.values()))


_current = Settings()


def settings() -> Settings:
    """Return the current settings."""
    return _current


@contextmanager
def using(**changes: object) -> Iterator[Settings]:
    """Change some settings within a with statement; not safe if other threads do so too."""
    global _current
    before = _current
    _current = replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield _current
    finally:
        _current = before


def float32_precision(chosen: Float32Products | None) -> Float32Products:
    """Return how products of fp32 tiles are computed: as chosen, else by torch.get_float32_matmul_precision().

    "tf32x3" (torch's "highest", its default): three TF32 products on tensor cores, with about the error of fp32, as in
    the memory-efficient backend of scaled_dot_product_attention. "ieee": fp32 multiply-adds, several times slower, for
    GPUs without TF32. "tf32" (torch's "high" and "medium"): factors truncated to 10 bits of mantissa.
    """
    if chosen is not None:
        return chosen
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "tf32x3" if has_tf32() else "ieee"


def tile_for(
    kernel: Kernel,
    head_dim: int,
    length: int,
    dtype: torch.dtype,
    precision: str,
    chosen: Mapping[str, Tile],
) -> Tile:
    """Return the tile chosen for a kernel, else the default for this GPU; length: of queries or keys."""
    if kernel in chosen:
        return chosen[kernel]
    tile = _default_tile(kernel, head_dim, length, dtype, precision)
    return tile if length >= TMA_FROM else replace(tile, tma=False)


def _default_tile(kernel: Kernel, head_dim: int, length: int, dtype: torch.dtype, precision: str) -> Tile:
    width = _width(head_dim)
    if dtype == torch.float32:
        return _float32_tile(kernel, head_dim, length, precision)
    if not has_tma():
        return HALF_OLDER[width][kernel]
    return HALF[width, "long" if length >= LONG else "short"][kernel]


def _float32_tile(kernel: Kernel, head_dim: int, length: int, precision: str) -> Tile:
    width = _width(head_dim)
    if precision == "tf32" and not has_tma():
        precision = "tf32x3"  # its tiles need no TMA
    if precision == "tf32x3" and head_dim <= 32:
        return FLOAT32_SLIM
    longer = FLOAT32_LONG.get((precision, width), {}) if length >= FLOAT32_LONG_FROM else {}
    return longer.get(kernel) or FLOAT32[precision, width][kernel]


def backward_for(
    head_dim: int, length: int, dtype: torch.dtype, chosen: Backward | None, fills_hopper: bool
) -> Backward | Literal["gluon"]:
    """Return the backward variant chosen, else the default; two passes if torch is set to be deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        return "two_pass"
    few = length < LONG and _width(head_dim) == "narrow"
    if fills_hopper:
        return chosen or "gluon"
    return chosen or ("one_pass" if few or dtype == torch.float32 else "two_pass")


def _width(head_dim: int) -> str:
    return "narrow" if head_dim <= 64 else "wide"


def has_tf32() -> bool:
    """Return whether tensor cores compute TF32 products: Ampere and later, and the interpreter (no effect there)."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 8


def has_tma() -> bool:
    """Return whether TMA descriptors work: on Hopper and later, and in Triton's interpreter."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 9


def has_wgmma(device: torch.device) -> bool:
    """Return whether the GPU has Hopper's matrix instructions for groups of four warps, which Blackwell lacks."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def has_many_rows(length: int, sequences: int) -> bool:
    """Return whether the Gluon kernels are the faster ones, by timings on one H200."""
    return length >= GLUON_FROM and length * sequences >= MANY_ROWS


def multiprocessors(device: torch.device) -> int:
    """Return the streaming multiprocessors of the device; 1 for the interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# The Hopper tiles below and the choice between one pass and two are the fastest, or within a few per cent of it, in a
# search on one H200 with Triton 3.6, lengths 1024 to 65536 (bench/flash_tune.py of b5a959f7).
TMA_FROM = 4096  # queries or keys; below, pointers are as fast on the device, and descriptors cost host time
GLUON_FROM = 1024  # queries or keys; at 256 the forward pass gains nothing, and the backward pass was not timed
MANY_ROWS = 32768  # queries or keys of all sequences
LONG = 8192  # queries or keys from which "long" tiles are used
FLOAT32_LONG_FROM = 4096  # the same for FLOAT32_LONG

# bf16 and fp16 on Hopper and later: (head dimension to 64 or to 128, length) → kernel → tile
HALF: Mapping[tuple[str, str], Mapping[str, Tile]] = {
    ("narrow", "short"): {
        "forward": Tile(64, 128, warps=4, stages=3),
        "one_pass": Tile(64, 64, warps=4, stages=3, held=2),
        "dkdv": Tile(64, 64, warps=4, stages=3, held=2),
        "dq": Tile(64, 128, warps=4, stages=2, tma=False),
    },
    ("narrow", "long"): {
        "forward": Tile(64, 128, warps=4, stages=3),
        "one_pass": Tile(64, 64, warps=4, stages=3, held=2),
        "dkdv": Tile(64, 64, warps=4, stages=3, held=2),
        "dq": Tile(128, 64, warps=4, stages=4, tma=False),
    },
    ("wide", "short"): {
        "forward": Tile(64, 64, warps=4, stages=3, tma=False),
        "one_pass": Tile(64, 32, warps=4, stages=3),
        "dkdv": Tile(64, 64, warps=4, stages=2),
        "dq": Tile(64, 64, warps=4, stages=2),
    },
    ("wide", "long"): {
        "forward": Tile(64, 64, warps=4, stages=3, tma=False),
        "one_pass": Tile(128, 64, warps=8, stages=2, tma=False),
        "dkdv": Tile(128, 64, warps=8, stages=3),
        "dq": Tile(64, 64, warps=4, stages=3, held=1),
    },
}
# bf16 and fp16 on GPUs without TMA: small enough for 99 KiB of shared memory
HALF_OLDER: Mapping[str, Mapping[str, Tile]] = {
    "narrow": {
        "forward": Tile(128, 64, warps=8, stages=2, tma=False),
        "one_pass": Tile(64, 64, warps=8, stages=1, tma=False),
        "dkdv": Tile(64, 64, warps=8, stages=2, tma=False),
        "dq": Tile(64, 64, warps=4, stages=2, tma=False),
    },
    "wide": {
        "forward": Tile(128, 32, warps=8, stages=2, tma=False),
        "one_pass": Tile(64, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(64, 32, warps=8, stages=1, tma=False),
        "dq": Tile(64, 32, warps=8, stages=1, tma=False),
    },
}
# fp32: (precision of the products, head dimension to 64 or to 128) → kernel → tile
FLOAT32: Mapping[tuple[str, str], Mapping[str, Tile]] = {
    ("ieee", "narrow"): {
        "forward": Tile(32, 32, warps=4, stages=1, tma=False),
        "one_pass": Tile(32, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(32, 32, warps=4, stages=1, tma=False),
        "dq": Tile(32, 32, warps=4, stages=1, tma=False),
    },
    ("ieee", "wide"): {
        "forward": Tile(32, 64, warps=8, stages=1, tma=False),
        "one_pass": Tile(32, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(32, 32, warps=4, stages=1, tma=False),
        "dq": Tile(32, 32, warps=4, stages=1, tma=False),
    },
    ("tf32", "narrow"): {
        "forward": Tile(64, 64, warps=4, stages=3),
        "one_pass": Tile(64, 64, warps=4, stages=2),
        "dkdv": Tile(64, 64, warps=4, stages=2),
        "dq": Tile(64, 64, warps=4, stages=2),
    },
    ("tf32", "wide"): {
        "forward": Tile(64, 64, warps=4, stages=2),
        "one_pass": Tile(32, 32, warps=4, stages=2, tma=False),
        "dkdv": Tile(32, 64, warps=4, stages=2, tma=False),
        "dq": Tile(32, 64, warps=4, stages=2, tma=False),
    },
    ("tf32x3", "narrow"): {
        "forward": Tile(32, 64, warps=4, stages=1, tma=False),
        "one_pass": Tile(32, 64, warps=4, stages=1, tma=False),
        "dkdv": Tile(32, 64, warps=4, stages=1, tma=False),
        "dq": Tile(32, 64, warps=4, stages=1, tma=False),
    },
    ("tf32x3", "wide"): {
        "forward": Tile(32, 32, warps=4, stages=2, tma=False),
        "one_pass": Tile(32, 32, warps=4, stages=1, tma=False),
        "dkdv": Tile(32, 32, warps=4, stages=1, tma=False),
        "dq": Tile(32, 32, warps=4, stages=2, tma=False),
    },
}
# Instead of the "tf32x3" tiles for head dimensions up to 32.
FLOAT32_SLIM = Tile(64, 64, warps=4, stages=1, tma=False)
# Instead of the FLOAT32 tiles for long sequences.
FLOAT32_LONG: Mapping[tuple[str, str], Mapping[str, Tile]] = {
    ("tf32", "wide"): {
        "forward": Tile(128, 64, warps=8, stages=2),
        "one_pass": Tile(128, 32, warps=8, stages=2),
        "dkdv": Tile(128, 32, warps=8, stages=2),
        "dq": Tile(128, 64, warps=8, stages=1),
    },
}
