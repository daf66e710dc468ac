"""Rows of a comparison as they are shown: texts of cells and figures, tables of them, counts by experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from tabulate import tabulate

from perfscribe.instruments.statistics import format_figure
from perfscribe.show.markdown_tables import markdown_text
from perfscribe.show.tables import MIB
from perfscribe.verbs.compare.cells import key_of
from perfscribe.verbs.compare.compared import DECIDED, GAINED, LOST, ONE_SIDED, REFUSED, SAME_RECORD, Comparison, Row

MOST_NAMES = 8
COUNTED = ("faster", "slower", "better", "worse", "same", "cannot tell", REFUSED, SAME_RECORD, LOST, GAINED)
NONE = "none"


def table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """A Markdown table of texts, whatever signs are in them."""
    cells = [[markdown_text(str(cell)) for cell in row] for row in rows]
    return tabulate(cells, [markdown_text(head) for head in heads], tablefmt="pipe", disable_numparse=True)


def varying(rows: Iterable[Row]) -> list[str]:
    """The factors whose levels differ among these rows, in their order."""
    levels: dict[str, set[str]] = {}
    rows = list(rows)
    for row in rows:
        for name, level in row.factors.items():
            levels.setdefault(name, set()).add(str(level))
    return [name for name, found in levels.items() if len(found) > 1 or any(name not in row.factors for row in rows)]


def cell_text(row: Row, names: Sequence[str]) -> str:
    """A cell by these factors; all of its own where there are none."""
    told = [name for name in names if name in row.factors] or list(row.factors)
    return ", ".join(f"{name} {row.factors[name]}" for name in told)


def figure(value: float, iqr: float | None, kind: str) -> str:
    """A median, rounded by its spread; of memory in MiB."""
    if kind == "memory":
        return f"{format_figure(value / MIB, None if iqr is None else iqr / MIB)} MiB"
    return format_figure(value, iqr)


def ratio_text(row: Row) -> str:
    """The ratio, rounded by its interval."""
    found = row.found
    if found is None:
        return REFUSED if row.verdict == REFUSED else NONE
    if found.ratio is None:
        return "A is 0"
    wide = None if found.low is None or found.high is None else found.high - found.low
    return format_figure(found.ratio, wide)


def interval_text(row: Row) -> str:
    """The interval of the ratio, and what it is over."""
    found = row.found
    if found is None or found.low is None or found.high is None:
        return NONE
    return f"{format_figure(found.low)} to {format_figure(found.high)}"


def over(row: Row) -> str:
    """What the interval is over."""
    if row.found is None:
        return NONE
    if row.found.over == "rounds":
        return f"{min(row.rounds_a, row.rounds_b)} rounds"
    return row.found.over


def remark(row: Row) -> str:
    """Why a figure has no verdict, and what to keep in mind."""
    why = [] if row.verdict in (*DECIDED, "same") else [row.reason]
    return "; ".join([*why, *row.marks]) or NONE


def pair(row: Row) -> tuple[str, str]:
    """What names the row's pair of cells."""
    return row.experiment, key_of(row.factors)


def counts(rows: Iterable[Row]) -> Counter[str]:
    """How many figures there are of each verdict."""
    return Counter(row.verdict for row in rows)


def shared(rows: Iterable[Row]) -> int:
    """How many cells are ok on both sides."""
    return len({pair(row) for row in rows if row.status_a == row.status_b == "ok"})


def median_ratio(rows: Iterable[Row]) -> str:
    """Median of the ratios of times, with their range."""
    found = sorted(row.found.ratio for row in rows if row.kind == "time" and row.found and row.found.ratio is not None)
    if not found:
        return "no time"
    median = format_figure(float(np.median(found)))
    return median if len(found) == 1 else f"{median} ({format_figure(found[0])} to {format_figure(found[-1])})"


def summary(made: Comparison, rows: Sequence[Row] | None = None) -> str:
    """A row an experiment: cells, figures by verdict, median ratio. Verdicts that there are none of have no column."""
    rows = made.rows if rows is None else rows
    found = counts(rows)
    kinds = [name for name in COUNTED if found[name]]
    lines: list[list[object]] = []
    for name in made.experiments:
        of = [row for row in rows if row.experiment == name]
        numbers = counts(of)
        alone = [sum(row.verdict == ONE_SIDED and getattr(row, side) == "ok" for row in of) for side in _STATUSES]
        lines.append([f"`{name}`", shared(of), *alone, *(numbers[kind] for kind in kinds), median_ratio(of)])
    heads = ["Experiment", "Cells of both", "Of A alone", "Of B alone", *kinds, "Median ratio of times (range)"]
    return table(lines, heads)


_STATUSES = ("status_a", "status_b")


def changes(made: Comparison, most: int) -> list[Row]:
    """The rows with the largest ratios either way, among those with a verdict."""
    decided = [row for row in made.rows if row.verdict in DECIDED and row.found and row.found.ratio]
    return sorted(decided, key=lambda row: -abs(np.log(row.found.ratio)))[:most]  # type: ignore[union-attr,arg-type]


def figures_table(made: Comparison, rows: Sequence[Row]) -> str:
    """A row a figure; a cell is told by the factors that vary in its experiment at either side."""
    names = {experiment: varying(made.of(experiment)) for experiment in _named(rows)}
    lines = [
        [
            f"`{row.experiment}`",
            cell_text(row, names[row.experiment]),
            row.name or "the cell",
            *(_sides(row)),
            ratio_text(row),
            interval_text(row),
            over(row),
            row.verdict,
            remark(row),
        ]
        for row in rows
    ]
    heads = [
        "Experiment",
        "Cell",
        "Figure",
        f"A: {made.a.name}",
        f"B: {made.b.name}",
        "Ratio B/A",
        "95 % interval",
        "Over",
        "B is",
        "Remark",
    ]
    return table(lines, heads)


def some(names: Iterable[str]) -> str:
    """The first of these names, and how many more there are."""
    found = sorted(names)
    more = len(found) - MOST_NAMES
    return ", ".join(found[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _named(rows: Iterable[Row]) -> dict[str, None]:
    return dict.fromkeys(row.experiment for row in rows)


def _sides(row: Row) -> list[str]:
    """Medians of both sides and how many samples they are of, or the statuses."""
    if row.found is None:
        return [row.status_a, row.status_b]
    found = row.found
    return [
        f"{figure(found.a, row.iqr_a, row.kind)} (n = {row.n_a})",
        f"{figure(found.b, row.iqr_b, row.kind)} (n = {row.n_b})",
    ]
