"""Rounding of figures in the hand-in: three significant digits, fewer for wide spreads."""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB_AS_GB = 2**30 / 1e9


def decimals(value: float, digits: int) -> int:
    """Number of decimals for this many significant digits; at least 0."""
    if value == 0:
        return 0
    rounded = float(f"{value:.{digits - 1}e}")
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


@dataclass(frozen=True)
class Number:
    """A number with its spread (standard deviation, or half the interquartile range), both in the same unit.

    exact: a size or a count, printed as a whole number. single: printed without spread. most: maximum number of digits,
    if computed from figures with fewer. str() formats it for a table cell. A missing figure is false and has value nan.
    """

    value: float
    spread: float | None = None
    exact: bool = False
    single: bool = False
    most: int = 3

    def __bool__(self) -> bool:
        return not math.isnan(self.value)

    @property
    def digits(self) -> int:
        """Significant digits: two if the spread exceeds a tenth of the value."""
        wide = self.spread is not None and self.spread > abs(self.value) / 10
        return min(self.most, 2 if wide else 3)

    def _parts(self) -> tuple[str, str]:
        """Number and spread as texts; the spread may be ""."""
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
        """Text in sentences and titles: as in the table, but without spread."""
        return self._parts()[0]

    def __str__(self) -> str:
        number, spread = self._parts()
        return f"{number}{f' ± {spread}' if spread else ''}"

    def within_noise(self, other: Number) -> bool:
        """Return whether both differ by no more than the sum of their spreads."""
        return abs(self.value - other.value) <= (self.spread or 0.0) + (other.spread or 0.0)
