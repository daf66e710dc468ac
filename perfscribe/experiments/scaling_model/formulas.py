"""Scaling models of terms that were measured apart: computing, latency, bandwidth (docs/scaling.md); no torch.

A collective: hops x latency of a hop + bytes of a rank / bandwidth. hops: messages one after the other; n - 1 for an
all-gather or a reduce-scatter by a ring, ceil(log2 n) by a tree (recursive doubling and halving), an all-reduce one of
each. Both send (n - 1)/n of the array's bytes from each rank, an all-reduce twice that. Sources: Hockney 1994 (latency
and bandwidth), Patarasuk and Yuan 2009 (ring), Thakur, Rabenseifner and Gropp 2005 (recursive halving and doubling).

A step: computing + communicating - overlap x the shorter of both. Overlap, from 0 to 1, is the one free parameter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfscribe.analytic.traffic import GB, bus_factor
from perfscribe.instruments.statistics import fit_latency_bandwidth

RING, TREE = "ring", "tree"
PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
LEAST_POINTS = 3
JUDGED_FROM = 3  # different numbers of ranks
MOST_RANKS = 1024
FACTOR = 8  # beyond as many times the largest measured count nothing but the model speaks
MEASURED, PREDICTED, MODEL_ONLY = "measured", "predicted", "model only"


@dataclass(frozen=True)
class Call:
    """A measured collective. message_bytes: of the whole array. time_ms: median of the slowest rank's."""

    ranks: int
    message_bytes: float
    time_ms: float


def hops(operation: str, algorithm: str, ranks: int) -> int:
    """Messages one after the other; 0 for one rank."""
    each = ranks - 1 if algorithm == RING else math.ceil(math.log2(ranks))
    return PHASES[operation] * each


@dataclass(frozen=True)
class CollectiveFit:
    """hop_ms: latency of a hop. ms_per_byte: of a byte that a rank sends. counts: the measured numbers of ranks.
    rms: root mean square of measured / fitted - 1."""

    operation: str
    algorithm: str
    hop_ms: float
    ms_per_byte: float
    counts: tuple[int, ...]
    rms: float

    @property
    def bus_gb_per_s(self) -> float | None:
        """Bandwidth as bus bandwidth; None where time does not grow with size."""
        return 1e3 / self.ms_per_byte / GB if self.ms_per_byte > 0 else None

    def latency_ms(self, ranks: int) -> float:
        """Of one call, whatever its size."""
        return self.hop_ms * hops(self.operation, self.algorithm, ranks)

    def ms_per_message_byte(self, ranks: int) -> float:
        """Time that a byte of the whole array adds."""
        return self.ms_per_byte * bus_factor(self.operation, ranks)


def fit(operation: str, algorithm: str, calls: Sequence[Call]) -> CollectiveFit | None:
    """Least squares of relative errors; None below LEAST_POINTS different points among several ranks.

    Both sides over the hops, the model is a line in bytes of a rank and hop, with the same relative errors.
    """
    several = [call for call in calls if call.ranks > 1]
    steps = [hops(operation, algorithm, call.ranks) for call in several]
    sent = [bus_factor(operation, c.ranks) * c.message_bytes / n for c, n in zip(several, steps, strict=True)]
    if len({(call.ranks, call.message_bytes) for call in several}) < LEAST_POINTS:
        return None
    line = fit_latency_bandwidth(sent, [c.time_ms * 1e-3 / n for c, n in zip(several, steps, strict=True)])
    if line is None:
        return None
    rms = math.sqrt(sum(one * one for one in line.residuals) / len(line.residuals))
    counts = tuple(sorted({call.ranks for call in several}))
    return CollectiveFit(operation, algorithm, 1e3 * line.alpha_s, 1e3 * line.beta_s_per_byte, counts, rms)


def best_fit(operation: str, calls: Sequence[Call], logged: str = "") -> CollectiveFit | None:
    """That of both algorithms with the smaller residuals, from JUDGED_FROM numbers of ranks on.

    Fewer do not judge: among one both fit alike, and among two a ring whose latency has a part that does not grow (a
    launch) cannot be told from a tree. Then it is the algorithm that the backend logged, where it is one of these, or
    else the ring, whose latency grows faster.
    """
    found = [one for algorithm in (RING, TREE) if (one := fit(operation, algorithm, calls)) is not None]
    if found and len(found[0].counts) >= JUDGED_FROM:
        return min(found, key=lambda one: one.rms)
    return min(found, key=lambda one: one.algorithm != logged.lower(), default=None)


@dataclass(frozen=True)
class Terms:
    """Milliseconds of a step. communication_ms: all collectives one after the other."""

    compute_ms: float
    communication_ms: float

    @property
    def shorter_ms(self) -> float:
        """What can be hidden at most."""
        return min(self.compute_ms, self.communication_ms)

    def exposed_ms(self, overlap: float) -> float:
        """What communication adds to computing."""
        return self.communication_ms - overlap * self.shorter_ms

    def step_ms(self, overlap: float) -> float:
        """The whole step."""
        return self.compute_ms + self.exposed_ms(overlap)


@dataclass(frozen=True)
class Point:
    """A measured step and its terms."""

    ranks: int
    step_ms: float
    terms: Terms


@dataclass(frozen=True)
class OverlapFit:
    """overlap: from 0 to 1. residuals: measured / modelled - 1 of each fitted point, by ranks."""

    overlap: float
    residuals: dict[int, float]


def fit_overlap(points: Sequence[Point]) -> OverlapFit | None:
    """By relative errors, from the points that communicate; None where there is none."""
    several = [point for point in points if point.terms.shorter_ms > 0]
    if not several:
        return None
    hidden = [point.terms.shorter_ms / point.step_ms for point in several]
    missing = [point.terms.step_ms(0.0) / point.step_ms - 1 for point in several]
    asked = sum(x * y for x, y in zip(hidden, missing, strict=True)) / sum(one * one for one in hidden)
    overlap = min(1.0, max(0.0, asked))
    return OverlapFit(overlap, {point.ranks: point.step_ms / point.terms.step_ms(overlap) - 1 for point in several})


@dataclass(frozen=True)
class Computing:
    """Computing of a step whose batch is divided among n ranks: fixed_ms + divided_ms / n."""

    fixed_ms: float
    divided_ms: float

    def time_ms(self, ranks: int) -> float:
        """Of one rank."""
        return self.fixed_ms + self.divided_ms / ranks


def fit_computing(steps: dict[int, float]) -> Computing:
    """From steps without communication by ranks, in ms; neither term below 0, least squares of relative errors.

    A single count cannot tell the terms apart: then all of it is divided, which is the most that scaling can give.
    """
    if len(steps) == 1:
        ((ranks, time_ms),) = steps.items()
        return Computing(0.0, time_ms * ranks)
    rows = [(1 / time_ms, 1 / ranks / time_ms) for ranks, time_ms in steps.items()]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    fixed, divided = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if divided < 0:
        fixed, divided = a / aa, 0.0
    elif fixed < 0:
        fixed, divided = 0.0, b / bb
    return Computing(fixed, divided)


def counts(measured: Collection[int] = ()) -> list[int]:
    """Powers of two up to MOST_RANKS and what was measured beside them, ascending."""
    return sorted({2**power for power in range(MOST_RANKS.bit_length())} | set(measured))


def reach(ranks: int, measured: Collection[int]) -> str:
    """measured, predicted, or model only: beyond FACTOR times the largest measured count, or where there is none."""
    if ranks in measured:
        return MEASURED
    return PREDICTED if measured and ranks <= FACTOR * max(measured) else MODEL_ONLY
