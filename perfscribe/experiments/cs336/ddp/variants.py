"""The ways to average gradients that a cell compares, and their names. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAIVE, FLAT, OVERLAP, BUCKETED = "naive", "flat", "overlap_individual", "overlap_bucketed"
TORCH = "torch_ddp"
# Those that begin to communicate when backward is over, so that their communication can be timed by itself.
AFTER_BACKWARD = (NAIVE, FLAT)
# Those whose phases are timed as well, in steps of their own.
PHASED = (*AFTER_BACKWARD, OVERLAP)

# Steps after which ranks are compared with a single process, and by dtype the largest relative error (Frobenius norm)
# of any parameter tensor's change. Batches of another shape are rounded in another order, so this only tells a wrong
# program from a right one: without averages the error is about 1.
CHECKED_STEPS = 3
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 1.5e-1, "fp16": 5e-2}


@dataclass(frozen=True)
class Variant:
    """One implementation. bucket_mb: of overlap_bucketed (MB = 10⁶ bytes), None for all others."""

    implementation: str
    bucket_mb: float | None = None

    @property
    def key(self) -> str:
        """Its name, with which those of its figures begin in a record."""
        return self.implementation if self.bucket_mb is None else f"{self.implementation}:{self.bucket_mb:g}"


def variants(implementations: Sequence[str], buckets_mb: Sequence[float]) -> list[Variant]:
    """One variant an implementation, and one a bucket size of overlap_bucketed."""
    return [
        Variant(implementation, float(size) if implementation == BUCKETED else None)
        for implementation in implementations
        for size in (buckets_mb if implementation == BUCKETED else (0,))
    ]


def as_level(of: Sequence[Variant]) -> str:
    """The variants as one level of a factor: what is measured interleaved belongs together."""
    return " ".join(variant.key for variant in of)


def from_level(level: str) -> list[Variant]:
    """The inverse of as_level."""
    parts = [key.partition(":") for key in level.split()]
    return [Variant(implementation, float(size) if size else None) for implementation, _, size in parts]


def traced(of: Sequence[Variant]) -> list[Variant]:
    """Those whose step is traced: each of ours once, of several bucket sizes the middle one."""
    bucketed = [variant for variant in of if variant.implementation == BUCKETED]
    middle = bucketed[len(bucketed) // 2 :][:1]
    return [variant for variant in of if variant in middle or variant.implementation not in (BUCKETED, TORCH)]
