"""`./run compare A B`: two sites, revisions of one, or commits of site local, figure by figure."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from perfscribe.base import called_from, files
from perfscribe.verbs.compare import page, sides
from perfscribe.verbs.compare.compared import LOST, ONE_SIDED, REFUSED, SAME_RECORD, Comparison, Row, compare

FAIL_ON = {"slower": ("slower", LOST), "worse": ("slower", "worse", LOST)}


class _Parser(argparse.ArgumentParser):
    """One that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"run: compare: {message} (./run compare --help)")


def _percent(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a percentage from 0 to 10000")
    return found


def _parser() -> _Parser:
    parser = _Parser(prog="./run compare", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("a", metavar="A", help="SITE, SITE@REVISION (as committed then), local@COMMIT or COMMIT (who measured)")
    add("b", metavar="B", help="the same; ratios are B over A, verdicts on B")
    add("--experiment", nargs="+", action="extend", default=[], metavar="NAME", help="these experiments alone")
    add("--csv", type=called_from.file, metavar="FILE", help="every figure with every column")
    add("--markdown", type=called_from.file, metavar="FILE", help="the page; its last table is then not printed")
    add("--fail-on", choices=tuple(FAIL_ON), help="exit status 1 where B is so in any figure, or lost a cell")
    add("--threshold", type=_percent, default=0.0, metavar="PERCENT", help="by more than that much, for --fail-on")
    return parser


def main(root: Path, arguments: Sequence[str]) -> int:
    """Compare, print and write; ValueError with one line where that cannot be."""
    asked = _parser().parse_args(arguments)
    if asked.a == asked.b:
        raise ValueError(f"compare: A and B are both {asked.a}")
    a, b = (sides.read(root, name) for name in (asked.a, asked.b))
    _check(asked.experiment, {*a.cells, *b.cells})
    made = compare(a, b, asked.experiment)
    if asked.csv:
        _write(asked.csv, page.csv_text(made))
    if asked.markdown:
        _write(asked.markdown, page.markdown(made))
    print(page.brief(made) if asked.markdown else page.markdown(made), end="")
    return _status(made, asked.fail_on, asked.threshold) if asked.fail_on else 0


def _check(names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            held = ", ".join(sorted(known)) or "none"
            raise ValueError(f"compare: neither side holds the experiment {name!r}; they hold {held}{hint}")


def _write(path: Path, text: str) -> None:
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):  # a link, a device, a pipe: written through
            path.write_text(text, encoding="utf-8")
        else:
            files.write_text(path, text)
    except OSError as error:
        raise ValueError(f"compare: {path} cannot be written ({error.strerror})") from error


def _status(made: Comparison, fail_on: str, threshold: float) -> int:
    """1 where B fails, or where nothing could be compared: a gate that saw nothing must not open."""
    if all(row.verdict in (ONE_SIDED, REFUSED, SAME_RECORD) for row in made.rows):
        print("compare: nothing was compared, so that --fail-on cannot tell", file=sys.stderr)
        return 1
    failed = [row for row in made.rows if row.verdict in FAIL_ON[fail_on] and _beyond(row, threshold)]
    if failed:
        print(
            f"compare: {len(failed)} of B's figures {fail_on} or lost, the first: {_name(failed[0])}", file=sys.stderr
        )
    return int(bool(failed))


def _beyond(row: Row, threshold: float) -> bool:
    """Whether the change is more than the threshold, the same for a ratio and its inverse; a lost cell always is."""
    if row.found is None or row.found.ratio is None or row.found.ratio == 0:
        return True
    return 100 * (max(row.found.ratio, 1 / row.found.ratio) - 1) > threshold


def _name(row: Row) -> str:
    cell = " ".join(f"{name}={level}" for name, level in row.factors.items())
    return f"{row.experiment} {cell} {row.name or row.reason}"
