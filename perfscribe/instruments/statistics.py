"""Statistics of timed samples: summaries, A/B ratios, and how a figure is printed.

Samples come in rounds: the samples of one fresh process are one round. Samples within a round are not
independent of each other, so every interval here is over the medians of rounds, never over single samples.
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
ROUNDS_FOR_INTERVAL = 6  # the fewest rounds whose extremes cover the median with 95 %: 1 - 2 / 2**6 = 0.969
SMALL_LEADING = Decimal("3.55")  # of a spread in units of its leading digit: below it one digit more is shown


@dataclass(frozen=True)
class Summary:
    """What samples of one quantity say, in the samples' own unit.

    n, rounds: number of samples and of rounds. mean, median, q1, q3, iqr, minimum, maximum: over all samples
    (quartiles by linear interpolation). std: sample standard deviation (divisor n - 1), None for n = 1.
    interval: distribution-free interval of the median over round medians, and coverage, the least probability with
    which it holds the median; both None below 6 rounds.
    range: smallest and largest round median for 2 to 5 rounds, None otherwise; it is no interval.
    """

    n: int
    rounds: int
    mean: float
    std: float | None
    median: float
    q1: float
    q3: float
    iqr: float
    minimum: float
    maximum: float
    interval: tuple[float, float] | None
    coverage: float | None
    range: tuple[float, float] | None

    @property
    def spread_label(self) -> str:
        """What `interval` or `range` is to be called in a table."""
        if self.interval is not None and self.coverage is not None:
            return f"{100 * self.coverage:.1f} % interval of the median over {self.rounds} rounds"
        if self.range is not None:
            return f"range of medians over {self.rounds} rounds"
        return "one round: neither interval nor range"


def summarise(rounds: Rounds) -> Summary:
    """Summary of non-negative samples that came in rounds.

    ValueError: no rounds, an empty round, or a sample that is negative, NaN or infinite.
    """
    checked = _checked_rounds(rounds, "rounds")
    samples = np.concatenate(checked)
    q1, median, q3 = (float(q) for q in np.quantile(samples, [0.25, 0.5, 0.75]))
    interval, coverage, spread = _spread_of_medians([float(np.median(samples)) for samples in checked])
    return Summary(
        n=samples.size,
        rounds=len(checked),
        mean=float(samples.mean()),
        std=float(samples.std(ddof=1)) if samples.size > 1 else None,
        median=median,
        q1=q1,
        q3=q3,
        iqr=q3 - q1,
        minimum=float(samples.min()),
        maximum=float(samples.max()),
        interval=interval,
        coverage=coverage,
        range=spread,
    )


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float] | None:
    """Closest symmetric pair of order statistics that holds the median with at least `confidence`, and its coverage.

    Independent values of any one continuous distribution: the k-th smallest and k-th largest of n hold the median
    with probability 1 - 2 P(Binomial(n, 1/2) < k). None where even smallest and largest cover less.
    """
    ordered = np.sort(_checked(values, "values"))
    n = ordered.size
    best = None
    tail = 0.0
    for k in range(1, n // 2 + 1):
        tail += math.comb(n, k - 1) / 2**n
        if 1 - 2 * tail < confidence:
            break
        best = (float(ordered[k - 1]), float(ordered[n - k]), 1 - 2 * tail)
    return best


@dataclass(frozen=True)
class Ratio:
    """B against A, interleaved: time of B over time of A, so that below 1 means that B takes less time.

    ratio: median over B's round medians / median over A's. low, high: 95 % interval by rounds, None below 6 rounds.
    aa_spread: how far A against itself strays from 1, relative, None where it was not measured.
    verdict: on B ("faster" than A, "slower" or "cannot tell"); reason: one clause that says why.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int
    aa_spread: float | None
    verdict: Verdict
    reason: str


def ratio(a_rounds: Rounds, b_rounds: Rounds, aa_rounds: Rounds | None = None) -> Ratio:
    """Compare B with A, measured in turn (A, B, A, B, ...): round i of each belongs together.

    Each round gives a ratio of its own, in which what slows the machine for a while and hits both cancels; the interval
    is that of their median by order statistics, widened to hold the ratio of the medians that tables show. On an H100,
    whose clock strays by 2.5 % from round to round, 12 rounds found 3 % more work in 55 of 60 trials, and none in 59 of
    60 of A against itself (bench/agreement.py).
    aa_rounds: A measured once more in the same turns as B; how far it strays gives aa_spread, which an effect must
    exceed.

    ValueError: different numbers of rounds, an empty round, or a time that is not positive and finite.
    """
    a, b = _paired_medians(a_rounds, b_rounds, "a_rounds", "b_rounds")
    estimate = _over(a, b)
    low, high = None, None
    if interval := median_interval(list(b / a)):
        low, high = min(interval[0], estimate), max(interval[1], estimate)
    spread = None
    if aa_rounds is not None:
        spread = _relative_effect(_over(*_paired_medians(a_rounds, aa_rounds, "a_rounds", "aa_rounds")))
    verdict, reason = _verdict(estimate, low, high, spread, a.size)
    return Ratio(estimate, low, high, a.size, spread, verdict, reason)


def format_figure(value: float | None, spread: float | None = None, digits: int = 3) -> str:
    """A measured figure as text: `digits` significant digits, but none finer than its `spread` allows.

    The last digit is the leading one of the spread, or the next where that is small (below 3.55 of it), so that a
    figure never moves by more than a seventh of its spread (Particle Data Group, Review of Particle Physics,
    introduction, on rounding). At least one significant digit stays where the spread exceeds the value. No thousands
    separators; a power of ten is written out below 1e-4 and from 1e9. None gives "n/a", infinities "inf" and "-inf".
    A spread of None, 0 or infinity sets no limit. ValueError: NaN, a negative spread, or digits below 1.
    """
    if value is None:
        return "n/a"
    if math.isnan(value) or (spread is not None and not spread >= 0):
        raise ValueError(f"cannot print a figure of {value} with spread {spread}")
    if digits < 1:
        raise ValueError(f"digits must be at least 1, not {digits}")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    shown = _significant(value, digits)
    if spread and math.isfinite(spread):
        coarsest = _last_place_of(Decimal(float(spread)))
        if coarsest > _last_place(shown):
            shown = _significant(value, max(1, shown.adjusted() - coarsest + 1))
    if value != 0 and not -4 <= shown.adjusted() < 9:
        return f"{shown:e}".replace("E", "e")
    return f"{shown:f}"


def _significant(value: float, digits: int) -> Decimal:
    """Value rounded to `digits` significant digits; whole numbers keep their trailing zeros when printed with f."""
    rounded = Decimal(f"{float(value):.{digits - 1}e}")
    return abs(rounded) if rounded == 0 else rounded


def _last_place_of(spread: Decimal) -> int:
    """Power of ten of the last digit that a figure with this spread is shown with."""
    leading = spread.adjusted()
    return leading - 1 if spread.scaleb(-leading) < SMALL_LEADING else leading


def _last_place(value: Decimal) -> int:
    """Power of ten of the last digit held."""
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _spread_of_medians(
    medians: Sequence[float],
) -> tuple[tuple[float, float] | None, float | None, tuple[float, float] | None]:
    """Interval, its coverage, range: of these at most one kind is given."""
    if len(medians) == 1:
        return None, None, None
    found = median_interval(medians)
    if found is None:
        return None, None, (min(medians), max(medians))
    return found[:2], found[2], None


def _over(a: Array, b: Array) -> float:
    """Median of b over median of a."""
    return float(np.median(b) / np.median(a))


def _relative_effect(value: float) -> float:
    """Distance of a ratio from 1, the same for r and 1 / r."""
    return max(value, 1 / value) - 1


def _verdict(
    estimate: float, low: float | None, high: float | None, spread: float | None, rounds: int
) -> tuple[Verdict, str]:
    """Verdict on B and the reason for it."""
    if low is None or high is None:
        return "cannot tell", f"{rounds} rounds, at least {ROUNDS_FOR_INTERVAL} are needed"
    if low <= 1 <= high:
        return "cannot tell", "the interval holds 1"
    if spread is not None and _relative_effect(estimate) <= spread:
        return "cannot tell", "the effect does not exceed the spread of A against itself"
    return ("faster" if estimate < 1 else "slower"), "the interval excludes 1"


def _paired_medians(a_rounds: Rounds, b_rounds: Rounds, a_name: str, b_name: str) -> tuple[Array, Array]:
    """Round medians of two interleaved series of positive times."""
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
    """Each round as an array of valid samples."""
    if len(rounds) == 0:
        raise ValueError(f"{name}: no rounds")
    return [_checked(samples, f"{name}[{index}]") for index, samples in enumerate(rounds)]


def _checked(samples: Sequence[float], name: str) -> Array:
    """Samples as an array; one-line ValueError where they cannot be measurements."""
    values: Array = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name}: expected a non-empty list of numbers")
    for bad, what in ((~np.isfinite(values), "not finite"), (values < 0, "negative")):
        if bad.any():
            index = int(np.argmax(bad))
            raise ValueError(f"{name}[{index}] is {what}: {values[index]}")
    return values
