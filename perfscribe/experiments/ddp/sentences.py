"""Parts of the sentences that answer the questions of the DDP problems."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfscribe.experiments.ddp import variants as v
from perfscribe.findings import CannotTell, is_number, need, shown
from perfscribe.statistics import format_figure

# What tells cells apart, and how a level is named.
CELL = {
    "size": "{}",
    "seq_len": "context {}",
    "batch": "global batch {}",
    "world_size": "{} processes",
    "backend": "{}",
    "dtype": "{}",
}
ALWAYS_NAMED = "world_size"


def _differs(rows: pd.DataFrame, name: str) -> bool:
    return name == ALWAYS_NAMED or rows[name].nunique() > 1


def cells(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each cell, with what tells it from the other cells."""
    need(rows, 1, "cells")
    names = [name for name in CELL if _differs(rows, name)]
    for _, own in rows.groupby(list(CELL), sort=False):
        yield ", ".join(CELL[name].format(own.iloc[0][name]) for name in names), own


def listed(rows: pd.DataFrame, parts: list[str]) -> str:
    """What is to be said of the cells, behind what all of them have in common; CannotTell where nothing is."""
    if not parts:
        raise CannotTell("no cell holds the implementations that are compared")
    same = [shown.format(rows.iloc[0][name]) for name, shown in CELL.items() if not _differs(rows, name)]
    return f"{'; '.join(parts)}. All of this is of {', '.join(same)}." if same else f"{'; '.join(parts)}."


def same_cell(rows: pd.DataFrame, cell: pd.DataFrame) -> pd.DataFrame:
    """The rows of the same cell in another table."""
    names = list(CELL)
    return rows if rows.empty else rows[(rows[names] == cell.iloc[0][names]).all(axis=1)]


def of(rows: pd.DataFrame, implementation: str) -> pd.Series | None:
    """The row of an implementation."""
    found = rows[rows["implementation"] == implementation]
    return None if found.empty else found.iloc[0]


def cells_with(rows: pd.DataFrame, *wanted: tuple[pd.DataFrame, str]) -> Iterator[tuple[str, list[pd.Series]]]:
    """The cells of which each of these tables has a row of that implementation: what tells them apart, these rows."""
    for name, own in cells(rows):
        found = [of(same_cell(table, own), implementation) for table, implementation in wanted]
        present = [row for row in found if row is not None]
        if len(present) == len(wanted):
            yield name, present


def ms(row: pd.Series, name: str) -> str:
    """A figure in milliseconds, no finer than its spread, as the tables print it."""
    return f"{shown(row, name)} ms"


def name_of(row: pd.Series) -> str:
    """What the row's implementation is called."""
    bucketed = row.get("implementation", v.BUCKETED) == v.BUCKETED
    return f"buckets of {float(row['bucket_mb']):g} MB" if bucketed else str(row["implementation"])


def exposed(row: pd.Series) -> str:
    """Exposed communication with its interval, where turns are enough for one."""
    low, high = row["exposed_low_ms"], row["exposed_high_ms"]
    if not (is_number(low) and is_number(high)):
        return ms(row, "exposed_ms")
    return f"{ms(row, 'exposed_ms')} (interval {format_figure(float(low))} to {format_figure(float(high))})"


def against(row: pd.Series, whose: str) -> str:
    """The step's ratio to naive's or PyTorch's, and what its interval tells."""
    names = {"naive": "naive's", "torch": "PyTorch's", "least": "the least"}
    verdict = str(row[f"{whose}_verdict"])
    said = "which is faster cannot be told" if verdict == "cannot tell" else verdict
    return f"{shown(row, f'{whose}_ratio')} × {names[whose]} (interval {row[f'{whose}_interval']}: {said})"
