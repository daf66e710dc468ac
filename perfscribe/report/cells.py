"""Cells of hand-in tables: figures, words, and what stands where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfscribe.report.site import NOTHING, Row, figure
from perfscribe.show.rounding import Figure

WORDS = {"oom": "OOM", "failed": "failed", "timeout": "timeout"}  # statuses that stand in a cell


@dataclass(frozen=True)
class Cell:
    """A cell of a hand-in table.

    able: it can hold a figure. filled: it does, or a word that is a result. why: the reason where it does not.
    """

    text: str
    able: bool = True
    filled: bool = True
    why: str = ""


def label(text: Any) -> Cell:
    """A level, a label or a published figure."""
    return Cell(str(text), able=False, filled=False)


NO_SUCH_THING = Cell(NOTHING, able=False, filled=False)
NOT_MEASURED = Cell(NOTHING, filled=False)


def word(text: str) -> Cell:
    """A word that is a result, such as a dtype."""
    return Cell(text) if text else NOT_MEASURED


def as_cell(row: Row | None, column: str, scale: float = 1.0, unit: str = "", mark: str = "") -> Cell:
    """The figure of a row, or the word of its status."""
    if found := figure(row, column, scale, unit):
        return Cell(f"{found!s}{mark}")
    if row is None or row["status"] == "ok":
        return NOT_MEASURED
    status = WORDS.get(row["status"], NOTHING)
    return Cell(status, filled=status == "OOM", why=row["reason"])


def shown(found: Figure, row: Row | None = None, mark: str = "") -> Cell:
    """A cell of a figure that was computed; without one the word of its row's status."""
    return Cell(f"{found!s}{mark}") if found else as_cell(row, "")
