"""`./run compare alice bob`: two subjects of the config, row by row of their tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from perfscribe.instruments.statistics import format_figure
from perfscribe.records.disturbances import DISTURBED

# The time that each table is about, and what tells its rows apart.
TABLES = {
    "flash": ("both_ms", ("seq_len", "head_dim", "dtype")),
    "leaderboard": ("both_ms", ("seq_len", "head_dim", "dtype")),
    "ddp": ("step_ms", ("size", "world_size", "implementation", "bucket_mb", "dtype")),
    "sharding": ("step_ms", ("size", "world_size", "dtype")),
}
# Each side was launched once. At once or twice both half IQRs, copies of one kernel differed in 16 and 7 of 60 pairs on
# a busy CPU of two cores; at three times in 2.
APART, LEAST_SAMPLES = 3, 5
NOTE = (
    f"Ratio: of their times over ours, which was timed in turns with each. A verdict takes {LEAST_SAMPLES} samples a "
    f"side, an undisturbed host, and ratios further apart than {APART} times both half IQRs together."
)

Row = Mapping[str, str]


def compare(folder: Path, arguments: Sequence[str]) -> str:
    """A table of both subjects in the CSV files of a site; empty where neither word is one of its subjects."""
    known = {row["subject"] for row in _rows(folder / "cs336.subjects.csv")}
    if not set(arguments[:2]) & known:
        return ""
    if len(arguments) != 2:
        raise ValueError(f"compare: of subjects two names alone, as in ./run compare {' '.join(sorted(known)[:2])}")
    if unknown := set(arguments) - known:
        raise ValueError(f"compare: no subject {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    made = []
    for name, (column, levels) in TABLES.items():
        rows = _rows(folder / f"cs336.subject_{name}.csv")
        first, second = ({_levels(row, levels, one): row for row in rows if row["subject"] == one} for one in arguments)
        for key in dict.fromkeys([*first, *second]):
            pair = [of.get(key) for of in (first, second)]
            made.append([name, " ".join(key), *(_shown(row, column) for row in pair), *_judged(pair, column)])
    return f"{tabulate(made, ['', 'Row', *arguments, 'Ratio', 'Verdict'], disable_numparse=True)}\n\n{NOTE}"


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _levels(row: Row, names: Sequence[str], subject: str) -> tuple[str, ...]:
    return tuple(row[name].removesuffix(f" ({subject})") for name in names if row[name] != "none")


def _shown(row: Row | None, column: str) -> str:
    if row is None:
        return "not there"
    if row["status"] == "ok":
        return f"{format_figure(float(row[column]))} ms"
    why, *_ = row["reason"].removeprefix("WrongResult: ").split(";")  # the rest is on the page of subjects
    return f"{row['status']}: {why}"


def _judged(pair: Sequence[Row | None], column: str) -> tuple[str, str]:
    rows = [row for row in pair if row is not None and row["status"] == "ok" and _number(row["over_ours"])]
    if len(rows) < 2:
        return "-", "-"
    first, second = (float(row["over_ours"]) for row in rows)
    spread = sum(float(row["over_ours"]) * _number(row[f"{column}_iqr"]) / 2 / float(row[column]) for row in rows)
    few = any(_number(row.get(f"{column}_n") or row["n"]) < LEAST_SAMPLES for row in rows)
    disturbed = any(flag in row["flags"] for flag in DISTURBED for row in rows)
    if few or disturbed or abs(second - first) <= APART * spread:
        return format_figure(second / first), "cannot tell"
    return format_figure(second / first), "faster" if second < first else "slower"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # one sample has no spread, and not each row has ours beside it
        return 0.0
