"""What became of the tables of a document, and how that is told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfscribe.filling.looking_up import Found

# Texts, each with the rows that it is about and their headings.
Places = dict[str, dict[str, list[str]]]


@dataclass
class Outcome:
    """What became of one table.

    line: of its header, from 1. what: the site's table, or why it stays. known: it is a table of ours. cells: filled;
    figures: those of them that hold one. lacking: texts that are no figures; flagged: flags of figures; unfilled: why
    cells were not filled. faults: what else could not be done. remarks: what to know of the figures.
    """

    line: int
    what: str = "not filled"
    known: bool = False
    cells: int = 0
    figures: int = 0
    lacking: Places = field(default_factory=dict)
    flagged: Places = field(default_factory=dict)
    unfilled: Places = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether something that was asked for could not be done."""
        return bool(self.faults or self.unfilled)

    def note(self, row: str, header: str, cell: Found) -> None:
        """Take down what is to be known of a cell."""
        if not cell.figure:
            put(self.lacking, cell.text, row, header)
        if cell.flags:
            put(self.flagged, cell.flags, row, header)
        beside = f"{row}, {header}: {cell.text}; by the source's formula {cell.beside}" if cell.beside else ""
        self.remark(cell.unit, beside)

    def remark(self, *texts: str) -> None:
        """Add remarks, each once."""
        self.remarks |= dict.fromkeys(filter(None, texts))

    def told(self) -> list[str]:
        """The lines about it."""
        count = f", {counted(self.cells, 'cell')} filled" if self.cells else ""
        if self.known and not self.cells and not self.failed:
            count = ", nothing to fill"
        lines = [f"line {self.line}: {self.what}{count}", *(f"  {fault}" for fault in self.faults)]
        lines += [*_at("", self.unfilled), *_at("", self.lacking), *_at("flagged when measured: ", self.flagged)]
        return [*lines, *(f"  {remark}" for remark in self.remarks)]


def put(places: Places, text: str, row: str, header: str) -> None:
    """Add a cell to what a text is about."""
    places.setdefault(text, {}).setdefault(row, []).append(header)


def _at(kind: str, places: Places) -> Iterable[str]:
    for text, rows in places.items():
        where = (f"{row}, {heads[0] if len(heads) == 1 else f'{len(heads)} columns'}" for row, heads in rows.items())
        yield f"  {kind}{text}: {'; '.join(where)}"


def counted(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def told(name: str, outcomes: Sequence[Outcome]) -> str:
    """What became of each table, a few lines each."""
    cells, tables = sum(one.cells for one in outcomes), sum(one.cells > 0 for one in outcomes)
    figures = f", {sum(one.figures for one in outcomes)} with a figure" if cells else ""
    first = f"{name}: {counted(cells, 'cell')} of {counted(tables, 'table')} filled{figures}"
    return "\n".join([first, *(line for one in outcomes for line in one.told())])


def difference(name: str, old: Sequence[str], new: Sequence[str]) -> str:
    """The change as `diff -u` tells it."""
    lines = difflib.unified_diff(old, new, name, name)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)
