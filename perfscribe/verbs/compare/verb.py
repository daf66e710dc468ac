"""`./run compare A B`: compare two sites, or commits of site local, figure by figure."""

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.base import called_from
from perfscribe.base.one_line import Parser
from perfscribe.config.errors import hint
from perfscribe.instruments.statistics import ROUNDS_FOR_INTERVAL
from perfscribe.show import rounding
from perfscribe.show.markdown_tables import of_texts
from perfscribe.show.tables import MIB
from perfscribe.verbs.compare import sides
from perfscribe.verbs.compare.compared import (
    DECIDED,
    DEVICE_RUNS_DIFFER,
    GAINED,
    HOST_RUNS_DIFFER,
    LOST,
    ONE_SIDED,
    REFUSED,
    SAME_RECORD,
    Comparison,
    compare,
)
from perfscribe.verbs.compare.sides import Side

FAIL_ON = {"slower": ("slower", LOST), "worse": ("slower", "worse", LOST)}
COUNTED = (*DECIDED, "same", "cannot tell", REFUSED, SAME_RECORD, LOST, GAINED)
MOST_CHANGES = 20
COLUMNS = tuple(field.name for field in fields(Comparison))
NOTE = (
    "The ratio is B's median over A's: below 1, B takes less time, or memory. A verdict takes 95 % intervals of both "
    f"medians that do not overlap. Below {ROUNDS_FOR_INTERVAL} rounds a side they are of samples within one run, and "
    "the ratio must lie beyond what two runs of the same code may differ by: "
    f"{HOST_RUNS_DIFFER:g} by the host clock, {DEVICE_RUNS_DIFFER:g} by graph replay. `--csv` writes every figure."
)


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a percentage from 0 to 10000")
    return percent


def _parser() -> Parser:
    parser = Parser(prog="./run compare", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("a", metavar="A", help="SITE, local@COMMIT (who measured), or a subject")
    add("b", metavar="B", help="the same; ratios are B over A, verdicts on B")
    add("--experiment", nargs="+", action="extend", default=[], metavar="NAME", help="these experiments alone")
    add("--csv", type=called_from.file, metavar="FILE", help="every figure with every column")
    add("--fail-on", choices=tuple(FAIL_ON), help="exit status 1 where B is so in any figure, or lost a cell")
    add("--threshold", type=_percent, default=0.0, metavar="PERCENT", help="by more than that much, for --fail-on")
    return parser


def main(root: Path, arguments: Sequence[str], _: Any) -> int:
    """Compare, print and write; ValueError (one line) for invalid arguments or files."""
    asked = _parser().parse_args(arguments)
    if asked.a == asked.b:
        raise ValueError(f"compare: A and B are both {asked.a}")
    a, b = (sides.read(root, name) for name in (asked.a, asked.b))
    held = {*a.cells, *b.cells}
    for name in set(asked.experiment) - held:
        experiments = f"{', '.join(sorted(held)) or 'none'}{hint(name, held)}"
        raise ValueError(f"compare: neither side holds {name!r}; they hold {experiments}")
    comparisons = compare(a, b, asked.experiment)
    if asked.csv:
        write_csv(comparisons, asked.csv)
    print(page(a, b, comparisons), end="")
    return _status(comparisons, asked.fail_on, asked.threshold) if asked.fail_on else 0


def write_csv(rows: Sequence[Comparison], path: Path) -> None:
    """Write every figure with all columns; missing ones are `none`. ValueError if the file cannot be written."""
    try:
        with open(path, "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in rows:
                cells = vars(row) | {"factors": _cell(row), "marks": "; ".join(row.marks)}
                writer.writerow("none" if cells[name] in (None, "") else cells[name] for name in COLUMNS)
    except OSError as error:
        raise ValueError(f"compare: {path} cannot be written ({error.strerror})") from error


def _status(rows: Sequence[Comparison], fail_on: str, threshold: float) -> int:
    """Return 1 if B fails, or if nothing was compared: a check without data must not pass."""
    if all(row.verdict in (ONE_SIDED, REFUSED, SAME_RECORD) for row in rows):
        print("compare: nothing was compared, so that --fail-on cannot tell", file=sys.stderr)
        return 1
    failed = [row for row in rows if row.verdict in FAIL_ON[fail_on] and _beyond(row, threshold)]
    if failed:
        first = f"{failed[0].experiment} {_cell(failed[0])} {failed[0].name or failed[0].reason}"
        print(f"compare: {len(failed)} of B's figures {fail_on} or lost, the first: {first}", file=sys.stderr)
    return int(bool(failed))


def _beyond(row: Comparison, threshold: float) -> bool:
    """Return whether a change exceeds the threshold, symmetrically for a ratio and its inverse, or a cell is lost."""
    return not row.ratio or 100 * (max(row.ratio, 1 / row.ratio) - 1) > threshold


def page(a: Side, b: Side, rows: Sequence[Comparison]) -> str:
    """Render the comparison as Markdown."""
    machines = [[f"{letter}: {side.name}", side.machines, side.commits] for letter, side in (("A", a), ("B", b))]
    changed = [row for row in rows if row.verdict in DECIDED and row.ratio]
    changed.sort(key=lambda row: -abs(math.log(row.ratio or 1)))
    names = varying(rows)
    ended = [row for row in rows if row.verdict in (LOST, GAINED)]
    refused = Counter(
        (row.experiment, row.name or "every figure", row.reason) for row in rows if row.verdict == REFUSED
    )
    parts = [
        f"# {b.name} against {a.name}",
        _totals(rows),
        of_texts(machines, ["Side", "Machine", "Measured by commit (+: with uncommitted changes)"]),
        _section("What differs between the machines", _between(a, b), ["", f"A: {a.name}", f"B: {b.name}"]),
        _section("By experiment", *_summary([row for row in rows if row.verdict != ONE_SIDED])),
        _one_sided([row for row in rows if row.verdict == ONE_SIDED]),
        _section("The largest changes", *_changes(changed[:MOST_CHANGES], names, a.name, b.name)),
        _section(
            "Cells that ended otherwise",
            [[row.experiment, _cell(row, names), row.status_a, row.status_b, row.reason] for row in ended],
            ["Experiment", "Cell", f"A: {a.name}", f"B: {b.name}", "Reason"],
        ),
        _section("Refused", [[*key, n] for key, n in refused.items()], ["Experiment", "Figure", "Why", "Cells"]),
        NOTE,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def varying(rows: Iterable[Comparison]) -> dict[str, set[str]]:
    """Factors with different levels among each experiment's cells."""
    levels: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for name, level in row.factors.items():
            levels.setdefault(row.experiment, {}).setdefault(name, set()).add(str(level))
    return {name: {factor for factor, values in factors.items() if len(values) > 1} for name, factors in levels.items()}


def _one_sided(rows: Sequence[Comparison]) -> str:
    """Number of cells that only one side measured."""
    counts = Counter((row.experiment, "A" if row.status_a == "ok" else "B") for row in rows)
    texts = ", ".join(f"{name} ({count} at {side})" for (name, side), count in sorted(counts.items()))
    return f"Cells of one side alone: {texts}." if texts else ""


def _section(title: str, rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    return f"## {title}\n\n{of_texts(rows, heads)}" if rows else ""


def _totals(rows: Sequence[Comparison]) -> str:
    """Summary: number of common cells, and of figures by verdict."""
    both = {(row.experiment, _cell(row)) for row in rows if row.status_a == row.status_b == "ok"}
    if not both:
        return "**No cell that is compared was measured at both sides.**"
    counts = Counter(row.verdict for row in rows if row.verdict != ONE_SIDED)
    verdicts = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts[name])
    cells, experiments = len(both), len({name for name, _ in both})
    size = f"{cells} cell{'s' * (cells != 1)} of {experiments} experiment{'s' * (experiments != 1)}"
    return f"**{size} measured at both sides.** Of their figures, by verdict on B: {verdicts}."


def _between(a: Side, b: Side) -> list[list[str]]:
    """Rows of machine properties known on both sides that differ: key, A, B."""
    left, right = a.identity(), b.identity()
    both = [name for name in left if name in right and left[name] != right[name]]
    return [[name, *(", ".join(sorted(side[name])) for side in (left, right))] for name in both]


def _summary(rows: Sequence[Comparison]) -> tuple[list[list[object]], list[str]]:
    """One row per experiment: figures by verdict that occur, and the median ratio of times."""
    kinds = [name for name in COUNTED if any(row.verdict == name for row in rows)]
    lines: list[list[object]] = []
    for name in sorted({row.experiment for row in rows}):
        group = [row for row in rows if row.experiment == name]
        ratios = sorted(row.ratio for row in group if row.kind == "time" and row.ratio is not None)
        middle = "no time"
        if ratios:
            middle = f"{_rounded(float(np.median(ratios)))} ({_rounded(ratios[0])} to {_rounded(ratios[-1])})"
        lines.append([name, *(sum(row.verdict == kind for row in group) for kind in kinds), middle])
    return lines, ["Experiment", *kinds, "Median ratio of times (range)"]


def _changes(
    rows: Sequence[Comparison], names: Mapping[str, set[str]], a: str, b: str
) -> tuple[list[list[object]], list[str]]:
    lines: list[list[object]] = [
        [
            row.experiment,
            _cell(row, names),
            row.name,
            _figure(row.a, row.iqr_a, row.kind),
            _figure(row.b, row.iqr_b, row.kind),
            _rounded(row.ratio, None if row.low is None or row.high is None else row.high - row.low),
            "none" if row.low is None else f"{_rounded(row.low)} to {_rounded(row.high)}",
            row.verdict,
            _remark(row.marks),
        ]
        for row in rows
    ]
    heads = ["Experiment", "Cell", "Figure", f"A: {a}", f"B: {b}", "Ratio B/A", "Interval", "B is", "Remark"]
    return lines, heads


def _remark(marks: Sequence[str]) -> str:
    """Join remarks; disturbances without their numbers, which are in the CSV, and without duplicates."""
    short = (mark.partition(" (")[0] if mark.startswith(("A: ", "B: ")) else mark for mark in marks)
    return "; ".join(dict.fromkeys(short)) or "none"


def _cell(row: Comparison, names: Mapping[str, set[str]] | None = None) -> str:
    """Name a cell by these factors; default: all."""
    factors = [name for name in row.factors if names is None or name in names[row.experiment]] or list(row.factors)
    return " ".join(f"{name}={row.factors[name]}" for name in factors)


def _figure(value: float | None, iqr: float | None, kind: str) -> str:
    """Format a median, rounded by its spread; memory in MiB."""
    if kind == "memory" and value is not None:
        return f"{_rounded(value / MIB, None if iqr is None else iqr / MIB)} MiB"
    return _rounded(value, iqr)


def _rounded(value: float | None, spread: float | None = None) -> str:
    return "n/a" if value is None else rounding.Number(value, spread and spread / 2).quoted
