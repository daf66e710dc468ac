"""B against A where they were measured apart: the ratio of medians, an interval and what it is over, a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perfscribe.instruments.statistics import CONFIDENCE, ROUNDS_FOR_INTERVAL, Rounds
from perfscribe.verbs.compare.metrics import HIGHER_IS_BETTER, SPEED, Kind

RESAMPLES = 10_000
# The fewest samples a side for an interval within runs: from these on the bootstrap of two medians held the true ratio
# in 95 % and more of simulated trials, with normal and with skewed times; with four it held it in 93 %.
SAMPLES_FOR_INTERVAL = 5
# What two runs of the same code on one machine may differ by: up to there a ratio of single runs tells nothing. By the
# host clock: site h200 timed the same passes in several processes, and in one the host launched 2.14 times as fast as
# in another (docs/compare.md). By a timer of the device: this project's choice.
HOST_RUNS_DIFFER, DEVICE_RUNS_DIFFER = 2.2, 1.1
# Counts and losses this close are the same; this project's choice.
SAME = 0.01
# Of which a run has samples, each of a pass of its own.
MEASURED_IN_PASSES = SPEED
OVER_ROUNDS, ONE_RUN, COUNT, NO_INTERVAL = "rounds", "samples within one run", "a count", "none"


@dataclass(frozen=True)
class Judged:
    """B against A in one figure.

    a, b: medians, of rounds' medians where the interval is over rounds. ratio: b over a; None where a is 0.
    low, high: bootstrap 95 % interval of the ratio, None where there is none. over: what the interval is over.
    verdict: on B: faster, slower (times, rates), better, worse (all else), same, cannot tell. reason: of this verdict.
    """

    a: float
    b: float
    ratio: float | None
    low: float | None
    high: float | None
    over: str
    verdict: str
    reason: str


def judge(a_rounds: Rounds, b_rounds: Rounds, kind: Kind, on_device: bool = False) -> Judged:
    """Compare the samples, or single values, of two cells, a list a round.

    The rounds of A and B do not belong together, so that each side is resampled by itself. From 6 rounds a side on the
    interval is over the medians of rounds. With fewer it is over samples within runs: it says nothing of how far
    another run would stray, so that a verdict takes more than what runs differ by. on_device: timed on the device.
    ValueError: a side without samples.
    """
    if not a_rounds or not b_rounds or not all(map(len, (*a_rounds, *b_rounds))):
        raise ValueError("each side needs samples in every round")
    a_medians, b_medians = (np.array([np.median(samples) for samples in side]) for side in (a_rounds, b_rounds))
    if kind not in MEASURED_IN_PASSES and _is_same(a_medians, b_medians):
        return Judged(*_medians(a_medians, b_medians), None, None, NO_INTERVAL, "same", f"within {SAME:.0%}")
    if kind == "memory":
        return _counted(a_medians, b_medians)
    if min(a_medians.size, b_medians.size) >= ROUNDS_FOR_INTERVAL:
        return _over(a_medians, b_medians, kind, OVER_ROUNDS, 1.0)
    a, b = (np.concatenate([np.asarray(samples, dtype=float) for samples in side]) for side in (a_rounds, b_rounds))
    runs = max(a_medians.size, b_medians.size)
    over = ONE_RUN if runs == 1 else f"samples within {runs} runs"
    if kind in ("loss", "score"):
        return _alone(a, b, f"one figure a run, {ROUNDS_FOR_INTERVAL} rounds a side are needed")
    if min(a.size, b.size) < SAMPLES_FOR_INTERVAL:
        needed = f"{SAMPLES_FOR_INTERVAL} a side are needed, or {ROUNDS_FOR_INTERVAL} rounds"
        return _alone(a, b, f"{a.size} sample{'s' * (a.size != 1)} against {b.size}, {needed}")
    return _over(a, b, kind, over, DEVICE_RUNS_DIFFER if on_device else HOST_RUNS_DIFFER)


def _medians(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float, float | None]:
    one, other = float(np.median(a)), float(np.median(b))
    return one, other, other / one if one > 0 else None


def _is_same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    one, other, ratio = _medians(a, b)
    return one == other or (ratio is not None and abs(ratio - 1) <= SAME)


def _counted(a: NDArray[np.float64], b: NDArray[np.float64]) -> Judged:
    """Of an allocator's counts, which do not scatter: what differs, differs."""
    one, other, ratio = _medians(a, b)
    if a.min() <= b.max() and b.min() <= a.max():
        return Judged(one, other, ratio, None, None, COUNT, "cannot tell", "the counts of rounds overlap")
    return Judged(one, other, ratio, None, None, COUNT, "better" if other < one else "worse", "counts, no interval")


def _alone(a: NDArray[np.float64], b: NDArray[np.float64], why: str) -> Judged:
    """Of figures without an interval."""
    return Judged(*_medians(a, b), None, None, NO_INTERVAL, "cannot tell", why)


def _over(a: NDArray[np.float64], b: NDArray[np.float64], kind: Kind, over: str, allowed: float) -> Judged:
    """By the bootstrap interval, which must lie beyond what runs differ by with both its ends."""
    one, other, ratio = _medians(a, b)
    if ratio is None or other <= 0 or min(a.min(), b.min()) <= 0:
        return Judged(one, other, ratio, None, None, NO_INTERVAL, "cannot tell", "a figure is not above 0")
    low, high = _interval(a, b)
    found = (one, other, ratio, low, high, over)
    if low <= 1 <= high:
        return Judged(*found, "cannot tell", "the interval holds 1")
    if max(low, 1 / high) <= allowed:
        return Judged(*found, "cannot tell", f"single runs of the same code may differ by a factor of {allowed:g}")
    good, bad = ("faster", "slower") if kind in SPEED else ("better", "worse")
    return Judged(*found, good if (ratio > 1) == HIGHER_IS_BETTER[kind] else bad, "the interval excludes 1")


def _interval(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile interval of median(b) / median(a), each side resampled by itself."""
    ratios = _resampled_medians(np.sort(b), 1) / _resampled_medians(np.sort(a), 0)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _resampled_medians(ordered: NDArray[np.float64], stream: int) -> NDArray[np.float64]:
    """Medians of resamples of ascending samples."""
    lower, upper = _middle_places(ordered.size, stream)
    medians: NDArray[np.float64] = (ordered[lower] + ordered[upper]) / 2
    return medians


@cache
def _middle_places(n: int, stream: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of n ascending samples lie in the middle of a resample, for each of RESAMPLES of them.

    A resample's sorted places are order statistics of n uniform draws, times n, rounded down: the k-th of them is
    Beta(k, n + 1 - k), and the one behind it follows from it. So no resample is drawn, whatever n.
    """
    random = np.random.default_rng(stream)
    k = (n + 1) // 2
    lower = random.beta(k, n + 1 - k, RESAMPLES)
    upper = lower if n % 2 else 1 - (1 - lower) * random.random(RESAMPLES) ** (1 / (n - k))
    return tuple(np.minimum((n * place).astype(np.int64), n - 1) for place in (lower, upper))  # type: ignore[return-value]
