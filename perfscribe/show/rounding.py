"""A figure as the hand-in prints it: three significant digits, fewer where it spreads."""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB_AS_GB = 2**30 / 1e9
MIB_AS_MB = 2**20 / 1e6
LACKING = "\0"  # in a text: a figure that is not there


def decimals(value: float, digits: int) -> int:
    """Places behind the point that show so many significant digits; never below 0."""
    if value == 0:
        return 0
    rounded = float(f"{value:.{digits - 1}e}")
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


@dataclass(frozen=True)
class Number:
    """A number with its spread (standard deviation, or half the interquartile range), both in the same unit.

    unit: printed behind it, with its blank. exact: a size or a count, printed whole. single: printed without spread.
    most: digits at most, where it was computed from figures of fewer.

    str() is a cell of a table; in a sentence, f"{figure}", it stands as answers quote it. What a table lacks is a
    figure too, false, of value nan: all that is computed from it lacks as well, and its sentence is left out.
    """

    value: float
    spread: float | None = None
    unit: str = ""
    exact: bool = False
    single: bool = False
    most: int = 3

    def __bool__(self) -> bool:
        return not math.isnan(self.value)

    @property
    def digits(self) -> int:
        """Two where it spreads by more than a tenth of itself."""
        wide = self.spread is not None and self.spread > abs(self.value) / 10
        return min(self.most, 2 if wide else 3)

    def _parts(self) -> tuple[str, str]:
        """The number, and its spread or nothing."""
        if not self:
            return LACKING, ""
        if self.exact:
            return f"{self.value:.0f}", ""
        places = decimals(self.value, self.digits)
        plain = f"{self.value:.{places}f}"
        if self.spread is None or self.single:
            return plain, ""
        if round(self.spread, places):
            return plain, f"{self.spread:.{places}f}"
        finer = decimals(self.value, 4)
        if finer > places and round(self.spread, finer):
            return f"{self.value:.{finer}f}", f"{self.spread:.{finer}f}"
        return plain, ""

    @property
    def quoted(self) -> str:
        """As answers and titles quote it: as the table prints it, without spread and unit."""
        return self._parts()[0]

    def __format__(self, spec: str) -> str:
        return self.quoted

    def __str__(self) -> str:
        number, spread = self._parts()
        return f"{number}{f' ± {spread}' if spread else ''}{self.unit}"

    def of(self, value: float, *others: Number) -> Number:
        """A figure computed from this one and others, no finer than the coarsest of them."""
        most = min((one.digits for one in (self, *others) if not one.exact), default=3)
        return Number(value, most=most)

    def over(self, other: Number) -> Number:
        """This one over the other."""
        return self.of(self.value / other.value, other)

    def share(self, other: Number) -> Number:
        """This one in percent of the other."""
        return self.of(100 * self.value / other.value, other)

    def percent(self) -> Number:
        """A share in percent."""
        return self.of(100 * self.value)

    def plain(self, scale: float = 1.0) -> Number:
        """The same times `scale`, without spread."""
        return Number(self.value * scale)

    def within_noise(self, other: Number) -> bool:
        """Whether they differ by no more than their spreads."""
        return abs(self.value - other.value) <= (self.spread or 0.0) + (other.spread or 0.0)


NO_FIGURE = Number(math.nan)
