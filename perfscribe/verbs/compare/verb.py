"""`./run compare A B`: compare two sites, or commits of site local, figure by figure."""

from __future__ import annotations

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
COLUMNS = tuple(one.name for one in fields(Comparison))
NOTE = (
    "The ratio is B's median over A's: below 1, B takes less time, or memory. A verdict takes 95 % intervals of both "
    f"medians that do not overlap. Below {ROUNDS_FOR_INTERVAL} rounds a side they are of samples within one run, and "
    "the ratio must lie beyond what two runs of the same code may differ by: "
    f"{HOST_RUNS_DIFFER:g} by the host clock, {DEVICE_RUNS_DIFFER:g} by graph replay. `--csv` writes every figure."
)


def _percent(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a percentage from 0 to 10000")
    return found


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
        told = f"{', '.join(sorted(held)) or 'none'}{hint(name, held)}"
        raise ValueError(f"compare: neither side holds {name!r}; they hold {told}")
    made = compare(a, b, asked.experiment)
    if asked.csv:
        write_csv(made, asked.csv)
    print(page(a, b, made), end="")
    return _status(made, asked.fail_on, asked.threshold) if asked.fail_on else 0


def write_csv(rows: Sequence[Comparison], path: Path) -> None:
    """Write every figure with all columns; missing ones are `none`. ValueError if the file cannot be written."""
    try:
        with open(path, "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            for one in rows:
                told = vars(one) | {"factors": _cell(one), "marks": "; ".join(one.marks)}
                writer.writerow("none" if told[name] in (None, "") else told[name] for name in COLUMNS)
    except OSError as error:
        raise ValueError(f"compare: {path} cannot be written ({error.strerror})") from error


def _status(rows: Sequence[Comparison], fail_on: str, threshold: float) -> int:
    """Return 1 if B fails, or if nothing was compared: a check without data must not pass."""
    if all(one.verdict in (ONE_SIDED, REFUSED, SAME_RECORD) for one in rows):
        print("compare: nothing was compared, so that --fail-on cannot tell", file=sys.stderr)
        return 1
    failed = [one for one in rows if one.verdict in FAIL_ON[fail_on] and _beyond(one, threshold)]
    if failed:
        first = f"{failed[0].experiment} {_cell(failed[0])} {failed[0].name or failed[0].reason}"
        print(f"compare: {len(failed)} of B's figures {fail_on} or lost, the first: {first}", file=sys.stderr)
    return int(bool(failed))


def _beyond(one: Comparison, threshold: float) -> bool:
    """Return whether a change exceeds the threshold, symmetrically for a ratio and its inverse, or a cell is lost."""
    return not one.ratio or 100 * (max(one.ratio, 1 / one.ratio) - 1) > threshold


def page(a: Side, b: Side, rows: Sequence[Comparison]) -> str:
    """Render the comparison as Markdown."""
    machines = [[f"{letter}: {side.name}", side.machines, side.commits] for letter, side in (("A", a), ("B", b))]
    changed = [one for one in rows if one.verdict in DECIDED and one.ratio]
    changed.sort(key=lambda one: -abs(math.log(one.ratio or 1)))
    names = varying(rows)
    ended = [one for one in rows if one.verdict in (LOST, GAINED)]
    refused = Counter(
        (one.experiment, one.name or "every figure", one.reason) for one in rows if one.verdict == REFUSED
    )
    parts = [
        f"# {b.name} against {a.name}",
        _says(rows),
        of_texts(machines, ["Side", "Machine", "Measured by commit (+: with uncommitted changes)"]),
        _section("What differs between the machines", _between(a, b), ["", f"A: {a.name}", f"B: {b.name}"]),
        _section("By experiment", *_summary([one for one in rows if one.verdict != ONE_SIDED])),
        _alone([one for one in rows if one.verdict == ONE_SIDED]),
        _section("The largest changes", *_changes(changed[:MOST_CHANGES], names, a.name, b.name)),
        _section(
            "Cells that ended otherwise",
            [[one.experiment, _cell(one, names), one.status_a, one.status_b, one.reason] for one in ended],
            ["Experiment", "Cell", f"A: {a.name}", f"B: {b.name}", "Reason"],
        ),
        _section("Refused", [[*key, n] for key, n in refused.items()], ["Experiment", "Figure", "Why", "Cells"]),
        NOTE,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def varying(rows: Iterable[Comparison]) -> dict[str, set[str]]:
    """Factors with different levels among each experiment's cells."""
    levels: dict[str, dict[str, set[str]]] = {}
    for one in rows:
        for name, level in one.factors.items():
            levels.setdefault(one.experiment, {}).setdefault(name, set()).add(str(level))
    return {name: {factor for factor, found in of.items() if len(found) > 1} for name, of in levels.items()}


def _alone(rows: Sequence[Comparison]) -> str:
    """Number of cells that only one side measured."""
    found = Counter((one.experiment, "A" if one.status_a == "ok" else "B") for one in rows)
    told = ", ".join(f"{name} ({count} at {side})" for (name, side), count in sorted(found.items()))
    return f"Cells of one side alone: {told}." if told else ""


def _section(title: str, rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    return f"## {title}\n\n{of_texts(rows, heads)}" if rows else ""


def _says(rows: Sequence[Comparison]) -> str:
    """Summary: number of common cells, and of figures by verdict."""
    both = {(one.experiment, _cell(one)) for one in rows if one.status_a == one.status_b == "ok"}
    if not both:
        return "**No cell that is compared was measured at both sides.**"
    found = Counter(one.verdict for one in rows if one.verdict != ONE_SIDED)
    told = ", ".join(f"{found[name]} {name}" for name in COUNTED if found[name])
    cells, experiments = len(both), len({name for name, _ in both})
    said = f"{cells} cell{'s' * (cells != 1)} of {experiments} experiment{'s' * (experiments != 1)}"
    return f"**{said} measured at both sides.** Of their figures, by verdict on B: {told}."


def _between(a: Side, b: Side) -> list[list[str]]:
    """Rows of machine properties known on both sides that differ: key, A, B."""
    left, right = a.identity(), b.identity()
    both = [name for name in left if name in right and left[name] != right[name]]
    return [[name, *(", ".join(sorted(side[name])) for side in (left, right))] for name in both]


def _summary(rows: Sequence[Comparison]) -> tuple[list[list[object]], list[str]]:
    """One row per experiment: figures by verdict that occur, and the median ratio of times."""
    kinds = [name for name in COUNTED if any(one.verdict == name for one in rows)]
    lines: list[list[object]] = []
    for name in sorted({one.experiment for one in rows}):
        of = [one for one in rows if one.experiment == name]
        ratios = sorted(one.ratio for one in of if one.kind == "time" and one.ratio is not None)
        middle = "no time"
        if ratios:
            middle = f"{_rounded(float(np.median(ratios)))} ({_rounded(ratios[0])} to {_rounded(ratios[-1])})"
        lines.append([name, *(sum(one.verdict == kind for one in of) for kind in kinds), middle])
    return lines, ["Experiment", *kinds, "Median ratio of times (range)"]


def _changes(
    rows: Sequence[Comparison], names: Mapping[str, set[str]], a: str, b: str
) -> tuple[list[list[object]], list[str]]:
    lines: list[list[object]] = [
        [
            one.experiment,
            _cell(one, names),
            one.name,
            _figure(one.a, one.iqr_a, one.kind),
            _figure(one.b, one.iqr_b, one.kind),
            _rounded(one.ratio, None if one.low is None or one.high is None else one.high - one.low),
            "none" if one.low is None else f"{_rounded(one.low)} to {_rounded(one.high)}",
            one.verdict,
            _remark(one.marks),
        ]
        for one in rows
    ]
    heads = ["Experiment", "Cell", "Figure", f"A: {a}", f"B: {b}", "Ratio B/A", "Interval", "B is", "Remark"]
    return lines, heads


def _remark(marks: Sequence[str]) -> str:
    """Join remarks; disturbances without their numbers, which are in the CSV, and without duplicates."""
    short = (mark.partition(" (")[0] if mark.startswith(("A: ", "B: ")) else mark for mark in marks)
    return "; ".join(dict.fromkeys(short)) or "none"


def _cell(one: Comparison, names: Mapping[str, set[str]] | None = None) -> str:
    """Name a cell by these factors; default: all."""
    told = [name for name in one.factors if names is None or name in names[one.experiment]] or list(one.factors)
    return " ".join(f"{name}={one.factors[name]}" for name in told)


def _figure(value: float | None, iqr: float | None, kind: str) -> str:
    """Format a median, rounded by its spread; memory in MiB."""
    if kind == "memory" and value is not None:
        return f"{_rounded(value / MIB, None if iqr is None else iqr / MIB)} MiB"
    return _rounded(value, iqr)


def _rounded(value: float | None, spread: float | None = None) -> str:
    return "n/a" if value is None else rounding.Number(value, spread and spread / 2).quoted
