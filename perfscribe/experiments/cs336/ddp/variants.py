"""Names of the gradient-averaging implementations that a cell compares. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAIVE, FLAT, OVERLAP, BUCKETED = "naive", "flat", "overlap_individual", "overlap_bucketed"
# PyTorch's, as it is and with gradients as views of its buckets, which saves it the copies.
TORCH, TORCH_VIEWS = "torch_ddp", "torch_ddp_views"
# Implementations that communicate only after backward, so that their communication can be timed by itself.
AFTER_BACKWARD = (NAIVE, FLAT)
# Implementations whose phases are timed as well, in separate steps.
PHASED = (*AFTER_BACKWARD, OVERLAP)

# Steps after which ranks are compared with a single process, and by dtype the largest relative error (Frobenius norm)
# allowed in any parameter tensor's change. Batches of another shape round in another order, so this only detects
# wrong programs: without averaging the error is about 1.
CHECKED_STEPS = 3
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 1.5e-1, "fp16": 5e-2}


@dataclass(frozen=True)
class Variant:
    """An implementation; bucket_mb: bucket size of overlap_bucketed (MB = 10⁶ bytes), None for all others."""

    implementation: str
    bucket_mb: float | None = None

    @property
    def key(self) -> str:
        """Name of the variant, the prefix of its values in a record."""
        return self.implementation if self.bucket_mb is None else f"{self.implementation}:{self.bucket_mb:g}"


def variants(implementations: Sequence[str], buckets_mb: Sequence[float]) -> list[Variant]:
    """Return one variant per implementation, and one per bucket size of overlap_bucketed."""
    return [
        Variant(implementation, float(size) if implementation == BUCKETED else None)
        for implementation in implementations
        for size in (buckets_mb if implementation == BUCKETED else (0,))
    ]


def as_level(of: Sequence[Variant]) -> str:
    """Return the variants as one factor level, because they are measured interleaved in one cell."""
    return " ".join(variant.key for variant in of)


def from_level(level: str) -> list[Variant]:
    """Return the variants of a level; the inverse of as_level."""
    parts = [key.partition(":") for key in level.split()]
    return [Variant(implementation, float(size) if size else None) for implementation, _, size in parts]


def traced(of: Sequence[Variant]) -> list[Variant]:
    """Return the variants whose step is traced: each of ours once, the middle one of several bucket sizes."""
    bucketed = [variant for variant in of if variant.implementation == BUCKETED]
    middle = bucketed[len(bucketed) // 2 :][:1]
    return [
        variant for variant in of if variant in middle or variant.implementation not in (BUCKETED, TORCH, TORCH_VIEWS)
    ]
