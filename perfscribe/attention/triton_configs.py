"""Which tiles, variants and splits the Triton kernels use, and how to choose others.

`settings()` are those in force; `using(...)` changes them for a while. A forward pass remembers its settings, so that
its backward pass, whichever thread it runs in and whenever, uses the same.

| setting          | values                          | meaning                                                |
| float32_products | None, "ieee", "tf32x3", "tf32"  | how fp32 products are made: see float32_precision()    |
| backward         | None, "one_pass", "two_pass"    | None: the default, see backward_for()                  |
| dq_sum           | "tma", "atomics"                | how one_pass adds to dQ: TMA reduction, or atomic adds |
| splits           | None or {kernel: number}        | None: the rule of split_length()                       |
| tiles            | {kernel: Tile}                  | in place of the defaults; kernels are named in KERNELS |

Backward variants: "one_pass" makes five products a tile and adds dQ up in fp32 in the order in which programs come, so
dQ may differ in the last bits from run to run; "two_pass" makes seven, in a fixed order: it is deterministic, and taken
when torch.use_deterministic_algorithms is on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import torch

Float32Products = Literal["ieee", "tf32x3", "tf32"]
Backward = Literal["one_pass", "two_pass"]
DqSum = Literal["tma", "atomics"]
Kernel = Literal["forward", "one_pass", "dkdv", "dq"]
KERNELS: tuple[Kernel, ...] = ("forward", "one_pass", "dkdv", "dq")

SHORTEST_SPLIT = 512  # keys (or queries) below which a program's start and its partial result cost more than it does


@dataclass(frozen=True)
class Tile:
    """How one kernel is compiled: a program holds `own` rows and takes `streamed` rows a step.

    own, streamed: powers of two from 16. Own rows are queries in "forward" and "dq", keys in "dkdv" and "one_pass".
    warps, stages: Triton's num_warps and num_stages. tma: read tiles through TMA descriptors (Hopper and later, or the
    interpreter), else through pointers. specialised: one group of warps loads while two compute, each on half of the
    own rows (Hopper, warps=4, tma, own=128; not for "one_pass"). registers: Triton's maxnreg. ahead: "forward" makes
    the scores of a tile while it weighs those of the tile before. ValueError: a specialised tile that breaks these
    rules, which Triton would ignore or miscompile without a word.
    """

    own: int
    streamed: int
    warps: int = 4
    stages: int = 2
    tma: bool = True
    specialised: bool = False
    registers: int | None = None
    ahead: bool = False

    def __post_init__(self) -> None:
        if self.specialised and not (self.tma and self.warps == 4 and self.own == 128):
            raise ValueError(f"a specialised tile needs tma, 4 warps and 128 own rows, not {self}")
        if self.specialised and self.ahead:
            raise ValueError(f"a specialised tile cannot work ahead: {self}")


@dataclass(frozen=True)
class Settings:
    """See the table at the top of this module."""

    float32_products: Float32Products | None = None
    backward: Backward | None = None
    dq_sum: DqSum = "tma"
    splits: Mapping[str, int] | None = None
    tiles: Mapping[str, Tile] = field(default_factory=lambda: MappingProxyType({}))


_current = Settings()


def settings() -> Settings:
    """The settings in force."""
    return _current


@contextmanager
def using(**changes: object) -> Iterator[Settings]:
    """Settings with some changed, within a with statement; not safe against other threads that do so too."""
    global _current
    before = _current
    _current = dataclasses.replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield _current
    finally:
        _current = before


def float32_precision(chosen: Float32Products | None) -> Float32Products:
    """How products of fp32 tiles are made: as chosen, else as torch.get_float32_matmul_precision() says.

    "ieee" (torch's "highest", its default): fp32 multiply-adds, no tensor cores. "tf32x3": three TF32 products, nearly
    the precision of fp32. "tf32" (torch's "high" and "medium"): factors rounded to 10 bits of mantissa.
    """
    if chosen is not None:
        return chosen
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def tile_for(
    kernel: Kernel, head_dim: int, length: int, dtype: torch.dtype, precision: str, chosen: Mapping[str, Tile]
) -> Tile:
    """The tile chosen for a kernel, else the default for the present GPU; length is that of queries or keys."""
    if kernel in chosen:
        return chosen[kernel]
    width = _width(head_dim)
    if dtype == torch.float32:
        tile = FLOAT32[precision, width][kernel]
        return tile if has_tma() else FLOAT32["ieee" if precision == "ieee" else "tf32x3", width][kernel]
    if not has_tma():
        return HALF_OLDER[width][kernel]
    return HALF[width, "long" if length >= LONG else "short"][kernel]


def backward_for(head_dim: int, dtype: torch.dtype, precision: str, chosen: Backward | None) -> Backward:
    """The backward variant chosen, else the default; two passes where torch is told to be deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        return "two_pass"
    what = precision if dtype == torch.float32 else "half"
    return chosen or ("two_pass" if (what, _width(head_dim)) in TWO_PASSES else "one_pass")


def _width(head_dim: int) -> str:
    return "narrow" if head_dim <= 64 else "wide"


def has_tma() -> bool:
    """Whether TMA descriptors work here: on Hopper and later, and in Triton's interpreter."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 9


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; 1 for the interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def split_length(
    length: int, programs: int, unit: int, causal: bool, n_multiprocessors: int, chosen: int | None
) -> int:
    """Rows of a split: how much of the streamed dimension one program takes; a multiple of `unit`.

    length: the streamed dimension; programs: those that there are without splitting, each over the whole length. A
    causal mask leaves about half of the length to a program, from nothing to all of it, so that s splits make
    programs·(s + 1)/2 that have work; two a multiprocessor even them out. Without a mask all are equal, and one a
    multiprocessor will do. No split is shorter than SHORTEST_SPLIT. chosen: a number of splits, in place of the rule.
    """
    if chosen is None:
        wanted = 4 * n_multiprocessors / programs - 1 if causal else n_multiprocessors / programs
        if programs >= (2 if causal else 0.8) * n_multiprocessors:
            wanted = 1
        chosen = max(1, min(int(wanted), length // SHORTEST_SPLIT))
    return -(-length // (chosen * unit)) * unit


LONG = 8192  # queries or keys from which "long" tiles are taken

# bf16 and fp16 on Hopper and later: (head dimension to 64 or to 128, length) → kernel → tile
HALF: Mapping[tuple[str, str], Mapping[str, Tile]] = {
    ("narrow", "short"): {
        "forward": Tile(128, 64, warps=4, stages=3),
        "one_pass": Tile(64, 64, warps=4, stages=3),
        "dkdv": Tile(64, 64, warps=4, stages=3),
        "dq": Tile(64, 64, warps=4, stages=3),
    },
    ("narrow", "long"): {
        "forward": Tile(128, 64, warps=4, stages=3),
        "one_pass": Tile(128, 64, warps=8, stages=3),
        "dkdv": Tile(128, 64, warps=8, stages=3),
        "dq": Tile(128, 64, warps=8, stages=3),
    },
    ("wide", "short"): {
        "forward": Tile(128, 64, warps=8, stages=3),
        "one_pass": Tile(128, 64, warps=8, stages=2),
        "dkdv": Tile(128, 64, warps=8, stages=3),
        "dq": Tile(128, 64, warps=8, stages=3),
    },
    ("wide", "long"): {
        "forward": Tile(128, 128, warps=8, stages=3),
        "one_pass": Tile(128, 64, warps=8, stages=2),
        "dkdv": Tile(128, 64, warps=8, stages=3),
        "dq": Tile(128, 64, warps=8, stages=3),
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
        "forward": Tile(64, 16, warps=8, stages=1, tma=False),
        "one_pass": Tile(32, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(64, 16, warps=8, stages=1, tma=False),
        "dq": Tile(64, 16, warps=8, stages=1, tma=False),
    },
    ("ieee", "wide"): {
        "forward": Tile(32, 32, warps=8, stages=1, tma=False),
        "one_pass": Tile(32, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(32, 32, warps=8, stages=1, tma=False),
        "dq": Tile(32, 32, warps=8, stages=1, tma=False),
    },
    ("tf32", "narrow"): {
        "forward": Tile(128, 64, warps=8, stages=2),
        "one_pass": Tile(128, 32, warps=8, stages=2),
        "dkdv": Tile(128, 32, warps=8, stages=2),
        "dq": Tile(128, 32, warps=8, stages=2),
    },
    ("tf32", "wide"): {
        "forward": Tile(128, 64, warps=8, stages=2),
        "one_pass": Tile(64, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(128, 32, warps=8, stages=2),
        "dq": Tile(128, 32, warps=8, stages=2),
    },
    ("tf32x3", "narrow"): {
        "forward": Tile(64, 32, warps=4, stages=2, tma=False),
        "one_pass": Tile(64, 32, warps=8, stages=1, tma=False),
        "dkdv": Tile(64, 16, warps=8, stages=1, tma=False),
        "dq": Tile(64, 16, warps=8, stages=1, tma=False),
    },
    ("tf32x3", "wide"): {
        "forward": Tile(64, 32, warps=4, stages=2, tma=False),
        "one_pass": Tile(32, 32, warps=4, stages=1, tma=False),
        "dkdv": Tile(32, 32, warps=4, stages=1, tma=False),
        "dq": Tile(32, 32, warps=4, stages=1, tma=False),
    },
}
# "half" or the precision of fp32 products, and the width, for which two passes are the default: elsewhere one
TWO_PASSES = {("tf32", "wide"), ("tf32x3", "wide")}
