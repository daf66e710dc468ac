"""Statistics of timed samples: summaries, A/B ratios, and number formatting.

Samples come in rounds: the samples of one fresh process are one round. Samples within a round are not independent, so
every interval here is over the medians of rounds, never over single samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rounds = Sequence[Sequence[float]]
Verdict = Literal["faster", "slower", "cannot tell"]

CONFIDENCE = 0.95
TOO_FEW_TURNS = "too few turns"
ROUNDS_FOR_INTERVAL = 6  # fewest rounds whose extremes contain the median with 95 %: 1 - 2 / 2**6 = 0.969


@dataclass(frozen=True)
class Summary:
    """Summary of n samples of one quantity over all rounds, in the samples' unit.

    iqr: quartiles by linear interpolation. std: sample standard deviation (divisor n - 1), None for n = 1.
    """

    n: int
    mean: float
    std: float | None
    median: float
    iqr: float
    minimum: float
    maximum: float


def summarise(rounds: Rounds) -> Summary:
    """Summarise non-negative samples that came in rounds.

    Raises ValueError for no rounds, an empty round, or a sample that is negative, NaN or infinite.
    """
    samples = np.concatenate(_checked_rounds(rounds, "rounds"))
    q1, median, q3 = (float(q) for q in np.quantile(samples, [0.25, 0.5, 0.75]))
    return Summary(
        n=samples.size,
        mean=float(samples.mean()),
        std=float(samples.std(ddof=1)) if samples.size > 1 else None,
        median=median,
        iqr=q3 - q1,
        minimum=float(samples.min()),
        maximum=float(samples.max()),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the closest symmetric pair of order statistics that contains the median with at least 95 %.

    For independent values of one continuous distribution, the k-th smallest and k-th largest of n contain the median
    with probability 1 - 2 P(Binomial(n, 1/2) < k). None if even smallest and largest cover less.
    """
    ordered = np.sort(_checked(values, "values"))
    n = ordered.size
    best = None
    tail = 0.0
    for k in range(1, n // 2 + 1):
        tail += math.comb(n, k - 1) / 2**n
        if 1 - 2 * tail < CONFIDENCE:
            break
        best = float(ordered[k - 1]), float(ordered[n - k])
    return best


@dataclass(frozen=True)
class Ratio:
    """B against A, interleaved: time of B over time of A, so below 1 means that B takes less time.

    ratio: median over B's round medians / median over A's. low, high: 95 % interval by rounds, None below 6 rounds.
    verdict: on B ("faster" than A, "slower" or "cannot tell").
    """

    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict

    @property
    def interval(self) -> str:
        """Interval as text for a table."""
        if self.low is None or self.high is None:
            return TOO_FEW_TURNS
        return f"{format_figure(self.low)} to {format_figure(self.high)}"

    @property
    def spread(self) -> float | str:
        """Length of the interval, or why there is none."""
        return TOO_FEW_TURNS if self.low is None or self.high is None else self.high - self.low

    @property
    def inverse(self) -> Ratio:
        """Ratio of A to B; the verdict is still on B."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Ratio(1 / self.ratio, low, high, self.verdict)


def ratio(a_rounds: Rounds, b_rounds: Rounds, aa_rounds: Rounds | None = None) -> Ratio:
    """Compare B with A, measured interleaved (A, B, A, B, ...): round i of each belongs together.

    Each round gives one ratio, in which a slowdown that hits both cancels; the interval is that of their median by
    order statistics, widened to contain the ratio of medians that tables show. On an H100 whose clock varies by 2.5 %
    between rounds, 12 rounds detected 3 % more work in 55 of 60 trials, and no difference in 59 of 60 trials of A
    against itself (bench/agreement.py). aa_rounds: A measured again, interleaved like B: an effect must exceed this
    control's difference from A.

    Raises ValueError for different numbers of rounds, an empty round, or a time that is not positive and finite.
    """
    a, b = _paired_medians(a_rounds, b_rounds, "a_rounds", "b_rounds")
    estimate = _over(a, b)
    low, high = None, None
    if interval := median_interval(list(b / a)):
        low, high = min(interval[0], estimate), max(interval[1], estimate)
    spread = 0.0
    if aa_rounds is not None:
        spread = _relative_effect(_over(*_paired_medians(a_rounds, aa_rounds, "a_rounds", "aa_rounds")))
    if low is None or high is None or low <= 1 <= high or _relative_effect(estimate) <= spread:
        return Ratio(estimate, low, high, "cannot tell")
    return Ratio(estimate, low, high, "faster" if estimate < 1 else "slower")


def format_figure(value: float, digits: int = 3) -> str:
    """Format with `digits` significant digits; in scientific notation below 1e-4 and from 1e9."""
    shown = Decimal(f"{value:.{digits - 1}e}")
    if value != 0 and not -4 <= shown.adjusted() < 9:
        return f"{shown:e}".replace("E", "e")
    return f"{shown:f}"


def _over(a: Array, b: Array) -> float:
    return float(np.median(b) / np.median(a))


def _relative_effect(value: float) -> float:
    """Return the distance of a ratio from 1, the same for r and 1 / r."""
    return max(value, 1 / value) - 1


def _paired_medians(a_rounds: Rounds, b_rounds: Rounds, a_name: str, b_name: str) -> tuple[Array, Array]:
    """Return the round medians of two interleaved series of positive times."""
    if len(a_rounds) != len(b_rounds):
        raise ValueError(f"interleaved rounds must pair: {len(a_rounds)} {a_name}, {len(b_rounds)} {b_name}")
    pair = []
    for rounds, name in ((a_rounds, a_name), (b_rounds, b_name)):
        medians = np.array([np.median(samples) for samples in _checked_rounds(rounds, name)])
        if (medians <= 0).any():
            raise ValueError(f"{name}: a ratio needs times above 0")
        pair.append(medians)
    return pair[0], pair[1]


def _checked_rounds(rounds: Rounds, name: str) -> list[Array]:
    """Return each round as an array of valid samples."""
    if len(rounds) == 0:
        raise ValueError(f"{name}: no rounds")
    return [_checked(samples, f"{name}[{index}]") for index, samples in enumerate(rounds)]


def _checked(samples: Sequence[float], name: str) -> Array:
    """Return samples as an array; raises ValueError (one line) if they cannot be measurements."""
    values: Array = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name}: expected a non-empty list of numbers")
    for bad, what in ((~np.isfinite(values), "not finite"), (values < 0, "negative")):
        if bad.any():
            index = int(np.argmax(bad))
            raise ValueError(f"{name}[{index}] is {what}: {values[index]}")
    return values
