"""A comparison as a page of Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter

from perfscribe.instruments.statistics import ROUNDS_FOR_INTERVAL
from perfscribe.verbs.compare import differences, shown
from perfscribe.verbs.compare.compared import GAINED, LOST, ONE_SIDED, REFUSED, SAME_RECORD, Comparison, Row
from perfscribe.verbs.compare.ratios import DEVICE_RUNS_DIFFER, HOST_RUNS_DIFFER, OVER_ROUNDS

MOST_CHANGES = 10
COLUMNS = (
    "experiment",
    "cell",
    "figure",
    "kind",
    "timer",
    "status_a",
    "status_b",
    "a",
    "b",
    "iqr_a",
    "iqr_b",
    "n_a",
    "n_b",
    "rounds_a",
    "rounds_b",
    "ratio",
    "low",
    "high",
    "interval_over",
    "verdict",
    "reason",
    "marks",
    "headline",
)
NOTE_RATIO = (
    "The ratio is B's median over A's: below 1, B takes less time, or memory. The verdict is on B: times and rates are "
    "faster or slower, all else better or worse. The interval is the bootstrap's 95 % interval of the ratio; each side "
    "was measured by itself and is resampled by itself."
)
NOTE_ONE_RUN = (
    "**An interval over samples within one run is none over runs**: it says how the passes of these two runs scatter, "
    "not how far another run of the same code on the same machine would stray. A verdict takes an interval that lies "
    f"wholly beyond a factor of {HOST_RUNS_DIFFER:g} by the host clock, of {DEVICE_RUNS_DIFFER:g} by a timer of the "
    f"device; with `rounds: {ROUNDS_FOR_INTERVAL}` on both sides smaller changes can be told."
)


def markdown(made: Comparison) -> str:
    """The whole page."""
    parts = [*_head(made), *_lists(made)]
    rows = _figures(made)
    if rows:
        parts += ["## Every figure", shown.figures_table(made, rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def brief(made: Comparison) -> str:
    """The page without its last table."""
    return "\n\n".join(part for part in (*_head(made), *_lists(made)) if part) + "\n"


def says(made: Comparison) -> str:
    """In a sentence or two how much the sides have in common, and what became of it."""
    number = shown.shared(made.rows)
    experiments = len({row.experiment for row in made.rows if row.status_a == row.status_b == "ok"})
    if not number:
        return "**No cell that is compared was measured at both sides**."
    found = shown.counts(row for row in made.rows if row.verdict != ONE_SIDED)
    told = ", ".join(f"{found[name]} {name}" for name in shown.COUNTED if found[name])
    cells = f"{number} cell{'s' * (number != 1)} of {experiments} experiment{'s' * (experiments != 1)}"
    return f"**{cells} measured at both sides.** Of their figures, by verdict on B: {told or 'none is compared'}."


def _head(made: Comparison) -> list[str]:
    a, b = made.a, made.b
    sides = [
        [f"{letter}: {side.name}", differences.machines(side), differences.commits(side)]
        for letter, side in (("A", a), ("B", b))
    ]
    differ = differences.between(a, b)
    return [
        f"# {b.name} against {a.name}",
        says(made),
        shown.table(sides, ["Side", "Machine", "Measured by commit (+: with uncommitted changes)"]),
        "What differs between the machines, where both tell it:"
        if differ
        else "No difference between the machines is told.",
        shown.table(differ, ["", f"A: {a.name}", f"B: {b.name}"]) if differ else "",
        "## By experiment",
        shown.summary(made) if made.rows else "Neither side has a cell of these experiments.",
        *notes(made),
    ]


def notes(made: Comparison) -> list[str]:
    """How to read the ratios and intervals that there are."""
    if not _compared(made):
        return []
    return [NOTE_RATIO, *([NOTE_ONE_RUN] if _within_runs(made) else [])]


def _compared(made: Comparison) -> bool:
    return any(row.found for row in made.rows)


def _within_runs(made: Comparison) -> bool:
    return any(row.found and row.found.low is not None and row.found.over != OVER_ROUNDS for row in made.rows)


def _lists(made: Comparison) -> list[str]:
    parts = []
    largest = shown.changes(made, MOST_CHANGES)
    if largest:
        parts += ["## The largest changes", shown.figures_table(made, largest)]
    parts += [ended_otherwise(made), refused(made), _not_compared(made)]
    return parts


def ended_otherwise(made: Comparison, level: str = "##") -> str:
    """Cells that are ok on one side and out of memory, time or failed on the other; empty where there are none."""
    rows = [row for row in made.rows if row.verdict in (LOST, GAINED)]
    if not rows:
        return ""
    names = shown.varying(rows)
    lines = [
        [f"`{row.experiment}`", shown.cell_text(row, names), row.status_a, row.status_b, row.verdict, row.reason]
        for row in rows
    ]
    heads = ["Experiment", "Cell", f"A: {made.a.name}", f"B: {made.b.name}", "By B", "Reason"]
    return f"{level} Cells that ended otherwise\n\n{shown.table(lines, heads)}"


def refused(made: Comparison, level: str = "##") -> str:
    """What would mislead, by reason; empty where nothing was refused."""
    found = Counter(
        (row.experiment, row.name or "every figure", row.reason) for row in made.rows if row.verdict == REFUSED
    )
    if not found:
        return ""
    lines = [[f"`{name}`", figure, reason, number] for (name, figure, reason), number in found.items()]
    heads = ["Experiment", "Figure", "Why", "Cells"]
    return f"{level} Refused\n\n{shown.table(lines, heads)}"


def _not_compared(made: Comparison) -> str:
    """Experiments and figures that say nothing of how well a machine or code does."""
    lines = [[f"`{name}`", "all", why] for name, why in made.left_out.items()]
    lines += [["any", shown.some(names), why] for why, names in sorted(made.names.items())]
    if not lines:
        return ""
    heads = ["Experiment", "Figures of both sides", "Why"]
    return f"## Not compared\n\n{shown.table(lines, heads)}"


def _figures(made: Comparison) -> list[Row]:
    return [row for row in made.rows if row.verdict not in (ONE_SIDED, LOST, GAINED, SAME_RECORD)]


def csv_text(made: Comparison) -> str:
    """Every row with every column; what a row has not is `none`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_filled(cell) for cell in _line(row)] for row in made.rows)
    return text.getvalue()


def _line(row: Row) -> list[object]:
    found = row.found
    judged = (found.a, found.b) if found else (None, None)
    ratio = (found.ratio, found.low, found.high, found.over) if found else (None,) * 4
    sizes = (row.n_a, row.n_b, row.rounds_a, row.rounds_b) if row.name else (None,) * 4
    return [
        row.experiment,
        " ".join(f"{name}={level}" for name, level in row.factors.items()),
        *(row.name, row.kind, row.timer, row.status_a, row.status_b),
        *judged,
        *(row.iqr_a, row.iqr_b),
        *sizes,
        *ratio,
        *(row.verdict, row.reason, "; ".join(row.marks), "yes" if row.headline else "no"),
    ]


def _filled(cell: object) -> object:
    return shown.NONE if cell is None or cell == "" else " ".join(cell.split()) if isinstance(cell, str) else cell
