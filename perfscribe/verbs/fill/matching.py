"""Which table of the hand-in a document's table is, and which of its rows a row is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from perfscribe.report.page import Cell, Table
from perfscribe.report.quantities import NOTHING
from perfscribe.verbs.fill import document

# Of a document's headings, so many of which have to be the hand-in's: a page may have columns of its own.
LEAST_SHARE = 0.6


class NoMatch(ValueError):
    """A document's table is none of the hand-in's; the text says why."""


@dataclass(frozen=True)
class Known:
    """A table of the hand-in with the heading of its problem."""

    heading: str
    table: Table

    @property
    def name(self) -> str:
        """How it is told."""
        return f"{self.heading}: {self.table.title.rstrip('.')}"


@dataclass(frozen=True)
class Fit:
    """A table of the hand-in, and for each column of the document the one that it is."""

    known: Known
    columns: Sequence[int | None]

    def row(self, texts: Sequence[str]) -> Sequence[Cell]:
        """The row with the same labels; ValueError where none or several have them."""
        found = list(self.known.table.rows)
        first = True
        for at, text in self.labels(texts):
            same = [row for row in found if _same(row[at].text) == _same(text)]
            # Behind the first a sentence may be another, as on where a log has a figure; a word or number may not.
            exact = first or " " not in text or text[0].isdigit()
            found, first = same if same or exact else found, False
        if first or len(found) != 1:
            raise ValueError("several rows of the hand-in fit it" if found else "no such row in the hand-in")
        return found[0]

    def labels(self, texts: Sequence[str]) -> list[tuple[int, str]]:
        """What tells the row apart, each with the hand-in's column that it is in."""
        columns = zip(self.columns, texts, strict=True)
        return sorted((at, text) for at, text in columns if at is not None and text and self._is_label(at))

    def _is_label(self, column: int) -> bool:
        cells = [row[column] for row in self.known.table.rows]
        return not any(cell.able for cell in cells) and any(cell.text != NOTHING for cell in cells)


def choose(table: document.Table, known: Sequence[Known]) -> Fit:
    """The one that fits best; NoMatch where none does, or several alike."""
    found = [(fit, _likeness(table, fit)) for one in known if (fit := _fit(table, one)) is not None]
    if not found:
        raise NoMatch("no table of the hand-in has these headings and rows")
    best = max(likeness for _, likeness in found)
    fits = [fit for fit, likeness in found if likeness == best]
    if len(fits) > 1:
        raise NoMatch(f"it may be {' or '.join(fit.known.name for fit in fits)}; the heading above it does not say")
    return fits[0]


def _fit(table: document.Table, known: Known) -> Fit | None:
    ours = [_same(header) for header in known.table.header]
    columns = [ours.index(_same(header)) if _same(header) in ours else None for header in table.headers]
    there = [column for column in columns if column is not None]
    fit = Fit(known, columns)
    named = sum(bool(header) for header in table.headers)
    if len(there) < 2 or len(there) < LEAST_SHARE * named or not any(map(fit._is_label, there)):
        return None
    return fit if any(_has_row(fit, row) for row in table.rows) else None


def _has_row(fit: Fit, row: document.Row) -> bool:
    try:
        fit.row(row.texts)
    except ValueError:
        return False
    return True


def _likeness(table: document.Table, fit: Fit) -> tuple[float, ...]:
    """How many headings and rows fit, then how like the problem's heading one above the table is."""
    columns = sum(column is not None for column in fit.columns)
    rows = sum(_has_row(fit, row) for row in table.rows)
    heads = [SequenceMatcher(None, _same(one), _same(fit.known.heading)).ratio() for one in table.above]
    return columns, rows, max(heads, default=0.0)


def _same(text: str) -> str:
    """A heading or a label without additions: a problem's letter, emphasis, case, commas of thousands, whose it is."""
    plain = re.sub(r"^[a-z]\) +|[*`†‡]| \((ours|yours)\)$", "", text.casefold())
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain)
    return re.sub(r"[\s_-]+", " ", plain.replace("–", "-").replace("—", "-")).strip()
