"""Gradient buckets as numbers: how they are filled, and the cost model that gives the best bucket size. No torch.

The model is that of the handout of Stanford CS336, assignment 2 (systems), 1.0.4, problem ddp_bucketed_benchmarking:
computing a bucket's gradients takes as long as sending them, so that all communication except the last bucket's hides
behind the backward pass; in addition each bucket has a fixed cost. With s bytes of gradients in n buckets, w bytes/s
and o seconds per bucket, the exposed time is

    s / (n·w) + n·o, least for n = √(s / (o·w)), that is for buckets of √(s·w·o) bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_MB = 10**6


def fill_buckets(sizes_bytes: Sequence[int], capacity_bytes: float | None) -> list[list[int]]:
    """Return the indices of the tensors in each bucket, in the order given; None: one bucket for all.

    No bucket exceeds capacity_bytes, except one that holds a single larger tensor: tensors are not split.
    Raises ValueError if the capacity is not above 0.
    """
    if capacity_bytes is not None and not capacity_bytes > 0:
        raise ValueError(f"capacity of a bucket: expected more than 0 bytes or None, not {capacity_bytes}")
    capacity = math.inf if capacity_bytes is None else capacity_bytes
    buckets: list[list[int]] = []
    filled = math.inf
    for index, size in enumerate(sizes_bytes):
        if not buckets or filled + size > capacity:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def overhead_s(total_bytes: float, buckets: float, bytes_per_s: float, call_s: float) -> float:
    """Return the exposed seconds that communication adds to a step: the last bucket's transfer plus all fixed costs."""
    return total_bytes / (buckets * bytes_per_s) + buckets * call_s


def best_bucket_bytes(total_bytes: float, bytes_per_s: float, call_s: float) -> float:
    """Return the bucket size in bytes that minimises overhead_s."""
    return math.sqrt(total_bytes * bytes_per_s * call_s)


@dataclass(frozen=True)
class OverheadFit:
    """The model fitted to measured times.

    bytes_per_s is inf if the times do not fall with the number of buckets, call_s is 0 if they do not rise with it:
    then the measured range contains no optimum. residuals_s: measured − fitted, in the order of the points.
    """

    bytes_per_s: float
    call_s: float
    residuals_s: tuple[float, ...]

    @property
    def has_optimum(self) -> bool:
        """Whether both terms are positive, so that best_bucket_bytes is defined."""
        return math.isfinite(self.bytes_per_s) and self.call_s > 0


def fit_overhead(total_bytes: float, points: Sequence[tuple[int, float]]) -> OverheadFit:
    """Fit 1/w and o, both ≥ 0, by least squares to points (number of buckets, exposed seconds).

    The points need at least two different numbers of buckets.
    """
    rows = [(total_bytes / buckets, float(buckets), seconds) for buckets, seconds in points]
    inverse_w, call_s = _two_term_fit(rows)
    residuals = tuple(y - a * inverse_w - b * call_s for a, b, y in rows)
    return OverheadFit(1 / inverse_w if inverse_w > 0 else math.inf, call_s, residuals)


def _two_term_fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return x, z ≥ 0 that minimise Σ (a·x + b·z − y)² over rows (a, b, y)."""
    aa = math.fsum(a * a for a, _, _ in rows)
    ab = math.fsum(a * b for a, b, _ in rows)
    bb = math.fsum(b * b for _, b, _ in rows)
    ay = math.fsum(a * y for a, _, y in rows)
    by = math.fsum(b * y for _, b, y in rows)
    determinant = aa * bb - ab * ab
    x, z = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
    if x >= 0 and z >= 0:
        return x, z
    # The minimum is on an edge: only one term, whichever leaves the smaller error.
    edges = [(max(ay / aa, 0.0), 0.0), (0.0, max(by / bb, 0.0))]
    return min(edges, key=lambda edge: math.fsum((a * edge[0] + b * edge[1] - y) ** 2 for a, b, y in rows))
