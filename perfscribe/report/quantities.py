"""Numbers of tables as chapters use them: they compute, compare, and print by the rounding rules.

The text of a quantity is a token of private characters that holds four texts. Which of them is printed depends on where
the token stands: a cell of a table takes the number with its spread, or the word of its status; a sentence takes the
number alone, and disappears where there is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.show.rounding import GIB_AS_GB, Number

NOTHING = "-"
START, FIELD, END = "\ue000", "\ue001", "\ue002"
REASON, END_REASON = "\ue003", "\ue004"  # around the text of {% reason %}
TOKEN = re.compile(f"{START}([^{FIELD}]*){FIELD}([^{FIELD}]*){FIELD}([^{FIELD}]*){FIELD}([^{END}]*){END}")
PRIVATE = re.compile("[\ue000-\ue004]")


def token(quoted: str, full: str, word: str = NOTHING, why: str = "") -> str:
    """The token of a number: as sentences quote it, as cells show it, the word and the reason where there is none."""
    return START + FIELD.join((quoted, full, word, why)) + END


def is_incomplete(text: str) -> bool:
    """Whether a number in the text is missing."""
    return any(not match[1] for match in TOKEN.finditer(text))


def in_prose(text: str) -> str:
    """The text with its numbers as sentences quote them."""
    return TOKEN.sub(lambda match: match[1], text)


@dataclass(frozen=True)
class Quantity(Number):
    """A number with its spread; false where it is missing.

    word: what its cell shows then, such as OOM. why: the reason that the record gives.
    """

    word: str = NOTHING
    why: str = ""

    def __str__(self) -> str:
        return token(self.quoted if self else "", Number.__str__(self) if self else "", self.word, self.why)

    def __format__(self, spec: str) -> str:
        return str(self)

    @property
    def full(self) -> str:
        """With its spread, also in a sentence."""
        return token(Number.__str__(self) if self else "", "", self.word, self.why)

    @property
    def whole(self) -> Quantity:
        """Without rounding to significant digits: for sizes and counts."""
        return replace(self, exact=True)

    @property
    def zero(self) -> bool:
        """Whether it is no more than its spread."""
        return abs(self.value) <= (self.spread or 0.0)

    @property
    def sqrt(self) -> Quantity:
        """Its square root; missing where it is negative."""
        return self._result(lambda: math.sqrt(self.value) if self.value >= 0 else math.nan)

    def as_fine_as(self, other: Quantity) -> Quantity:
        """With no more digits than another."""
        return self._result(lambda: self.value, other)

    def _result(self, value: Callable[[], float], other: Any = None) -> Quantity:
        """A computed quantity: no finer than its operands, and missing where one of them is."""
        operands = [one for one in (self, other) if isinstance(one, Quantity)]
        if (missing := next((one for one in operands if not one), None)) is not None:
            return missing
        return Quantity(value(), most=min((one.digits for one in operands if not one.exact), default=3))

    def __add__(self, other: Any) -> Quantity:
        return self._result(lambda: self.value + number(other), other)

    def __sub__(self, other: Any) -> Quantity:
        return self._result(lambda: self.value - number(other), other)

    def __rsub__(self, other: Any) -> Quantity:
        return self._result(lambda: number(other) - self.value, other)

    def __mul__(self, other: Any) -> Quantity:
        return self._result(lambda: self.value * number(other), other)

    def __truediv__(self, other: Any) -> Quantity:
        return self._result(lambda: self.value / number(other) if number(other) else math.nan, other)

    def __rtruediv__(self, other: Any) -> Quantity:
        return self._result(lambda: number(other) / self.value if self.value else math.nan, other)

    def __abs__(self) -> Quantity:
        return self._result(lambda: abs(self.value))

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> bool:
        return self.value < number(other)

    def __le__(self, other: Any) -> bool:
        return self.value <= number(other)

    def __gt__(self, other: Any) -> bool:
        return self.value > number(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= number(other)


MISSING = Quantity(math.nan)


def number(value: Any) -> float:
    """The number of a quantity or a level; nan for a missing one, so that no comparison with it holds."""
    return value.value if isinstance(value, Number) else float(value)


def from_gib(quantity: Quantity) -> Quantity:
    """A quantity in GiB as one in GB, with its spread."""
    spread = None if quantity.spread is None else quantity.spread * GIB_AS_GB
    return replace(quantity, value=quantity.value * GIB_AS_GB, spread=spread)
