"""Time of a training step over ranks: computing + communicating - overlap x the shorter of both.

One parameter is free: overlap, the share of what could be hidden that is, from 0 (one after the other) to 1 (the longer
of both alone counts). Computing and communicating are measured apart. It is fitted by relative errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BAND_FROM = 4  # points; below it a prediction has no band
CONFIDENCE = 0.95
# Student's t, two-sided 95 %, by degrees of freedom (any table of statistics, e.g. NIST/SEMATECH e-Handbook 1.3.6.7.2).
STUDENT_T = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}


@dataclass(frozen=True)
class Terms:
    """Milliseconds of a step. communication_ms: all collectives one after the other; latency_ms: their fixed part."""

    compute_ms: float
    communication_ms: float
    latency_ms: float = 0.0

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
    """overlap: from 0 to 1. asked: what least squares asks for without these limits; below 0 the step is longer than
    its terms, above 1 shorter. residuals: measured / modelled - 1 of each fitted point, by ranks."""

    overlap: float
    asked: float
    residuals: dict[int, float]
    deviation: float | None
    information: float

    @property
    def points(self) -> int:
        """How many steps it was fitted to."""
        return len(self.residuals)

    @property
    def worst(self) -> float:
        """The residual farthest from 0."""
        return max(self.residuals.values(), key=abs)

    def band_ms(self, terms: Terms) -> tuple[float, float] | None:
        """95 % prediction band of a step; None below BAND_FROM points.

        It holds the scatter of measured steps and the uncertainty of overlap, as far as the model's form is right.
        """
        if self.points < BAND_FROM or self.deviation is None:
            return None
        middle = terms.step_ms(self.overlap)
        of_overlap = terms.shorter_ms / math.sqrt(self.information)
        half = student_t(self.points - 1) * self.deviation * math.hypot(middle, of_overlap)
        return max(0.0, middle - half), middle + half


def student_t(freedom: int) -> float:
    """Two-sided 95 % quantile; beyond the table its last, which is larger than the true one. ValueError: below it."""
    if freedom < min(STUDENT_T):
        raise ValueError(f"{freedom} degrees of freedom: expected {min(STUDENT_T)} or more")
    return STUDENT_T[min(freedom, max(STUDENT_T))]


def fit_overlap(points: Sequence[Point]) -> OverlapFit | None:
    """From the points that communicate; None where there is none. ValueError: a step that takes no time."""
    several = [point for point in points if point.terms.shorter_ms > 0]
    if any(not point.step_ms > 0 for point in points):
        raise ValueError("a step takes no time: expected milliseconds above 0")
    if not several:
        return None
    hidden = [point.terms.shorter_ms / point.step_ms for point in several]
    missing = [point.terms.step_ms(0.0) / point.step_ms - 1 for point in several]
    information = sum(one * one for one in hidden)
    asked = sum(x * y for x, y in zip(hidden, missing, strict=True)) / information
    overlap = min(1.0, max(0.0, asked))
    residuals = {point.ranks: point.step_ms / point.terms.step_ms(overlap) - 1 for point in several}
    deviation = None
    if len(several) > 1:
        squares = sum((y - overlap * x) ** 2 for x, y in zip(hidden, missing, strict=True))
        deviation = math.sqrt(squares / (len(several) - 1))
    return OverlapFit(overlap, asked, residuals, deviation, information)


def band_reason(fit: OverlapFit | None) -> str:
    """Why there is no band."""
    points = 0 if fit is None else fit.points
    return f"none: {points} of {BAND_FROM} points"


@dataclass(frozen=True)
class Computing:
    """Computing of a step whose batch is divided among n ranks: fixed_ms + divided_ms / n."""

    fixed_ms: float
    divided_ms: float
    points: int

    def time_ms(self, ranks: int) -> float:
        """Of one rank."""
        return self.fixed_ms + self.divided_ms / ranks


def fit_computing(steps: dict[int, float]) -> Computing:
    """From steps without communication by ranks, in ms; neither term below 0, least squares of relative errors.

    A single count cannot tell the terms apart: then all of it is divided, which is the most that scaling can give.
    ValueError: no step, or one that takes no time.
    """
    if not steps or min(steps.values()) <= 0:
        raise ValueError(f"steps without communication: {steps}: expected milliseconds above 0")
    if len(steps) == 1:
        ((ranks, time_ms),) = steps.items()
        return Computing(0.0, time_ms * ranks, 1)
    rows = [(1 / time_ms, 1 / ranks / time_ms) for ranks, time_ms in steps.items()]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    fixed, divided = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if divided < 0:
        fixed, divided = a / aa, 0.0
    elif fixed < 0:
        fixed, divided = 0.0, b / bb
    return Computing(fixed, divided, len(steps))
