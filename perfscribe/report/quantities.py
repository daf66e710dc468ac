"""Numbers of tables as used in chapters: arithmetic, comparison, and rounding when printed.

The text of a quantity is a token of private characters that holds several texts. The place of the token decides which
is printed: table cells show the number with its spread, or the status word; sentences show only the number, and are
dropped if it is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from perfscribe.show.rounding import GIB_AS_GB, Number

NOTHING = "-"
START, FIELD, END = "\ue000", "\ue001", "\ue002"
REASON, END_REASON = "\ue003", "\ue004"  # delimiters of {% reason %} text
TOKEN = re.compile(START + FIELD.join(4 * [f"([^{FIELD}]*)"]) + f"{FIELD}([^{END}]*){END}")
PRIVATE = re.compile("[\ue000-\ue004]")


def token(quoted: str, full: str, word: str = NOTHING, why: str = "", boots: Iterable[str] = ()) -> str:
    """Make a number's token: text in sentences, text in cells, word and reason for a missing number, and its boots."""
    return START + FIELD.join((quoted, full, word, why, " ".join(boots))) + END


def is_incomplete(text: str) -> bool:
    """Return whether a number in the text is missing."""
    return any(not match[1] for match in TOKEN.finditer(text))


def in_prose(text: str) -> str:
    """Replace tokens by their text in sentences."""
    return TOKEN.sub(lambda match: match[1], text)


@dataclass(frozen=True)
class Quantity(Number):
    """A number with its spread; false if it is missing.

    word: text of its cell then, such as OOM. why: reason from the record. boots: in which it was measured.
    """

    word: str = NOTHING
    why: str = ""
    boots: frozenset[str] = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        return token(self.quoted if self else "", Number.__str__(self) if self else "", self.word, self.why, self.boots)

    def __format__(self, spec: str) -> str:
        return str(self)

    @property
    def full(self) -> str:
        """Token that prints the spread in a sentence, too; for sentences only, since its text for cells is empty."""
        return token(Number.__str__(self) if self else "", "", self.word, self.why)

    @property
    def whole(self) -> Quantity:
        """Copy that prints as a whole number, for sizes and counts."""
        return replace(self, exact=True)

    @property
    def zero(self) -> bool:
        """Whether it is indistinguishable from 0: its magnitude is at most its spread (0 if it has none)."""
        return abs(self.value) <= (self.spread or 0.0)

    @property
    def sqrt(self) -> Quantity:
        """Square root; missing if negative."""
        return self._result(lambda: math.sqrt(self.value) if self.value >= 0 else math.nan)

    def as_fine_as(self, other: Quantity) -> Quantity:
        """Limit the digits to those of another quantity."""
        return self._result(lambda: self.value, other)

    def _result(self, value: Callable[[], float], other: Any = None) -> Quantity:
        """Make a computed quantity: no more digits than its operands; missing if an operand is."""
        operands = [operand for operand in (self, other) if isinstance(operand, Quantity)]
        if (missing := next((operand for operand in operands if not operand), None)) is not None:
            return missing
        boots = frozenset[str]().union(*(operand.boots for operand in operands))
        most = min((operand.digits for operand in operands if not operand.exact), default=3)
        return Quantity(value(), most=most, boots=boots)

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
    """Value of a quantity or level; nan for a missing one, so that comparisons with it are false."""
    return value.value if isinstance(value, Number) else float(value)


def from_gib(quantity: Quantity) -> Quantity:
    """Convert a quantity from GiB to GB, including its spread."""
    spread = None if quantity.spread is None else quantity.spread * GIB_AS_GB
    return replace(quantity, value=quantity.value * GIB_AS_GB, spread=spread)
