"""Columns of a wide table that say the same in every row: one line above it says that once. The CSV keeps them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDE = 14  # columns beyond which a page needs fewer
FEWEST = 3  # so many at least, or the line is not worth its place
STAYING = 11  # a homework's own columns come first, at most so many: these stand whatever they hold

Column = Mapping[str, Any]
Row = Mapping[str, str]


def of(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Those of a wide table's columns that hold one value in all measured rows, of which there are several."""
    measured = measured_of(rows)
    if len(columns) <= WIDE or len(measured) < 2:
        return []
    titles = [column["title"] for column in columns]
    alone = [column for column in columns[STAYING:] if titles.count(column["title"]) == 1]  # not of its neighbour
    found = [column for column in alone if _is_constant(column, rows, measured)]
    return found if len(found) >= FEWEST else []


def measured_of(rows: Sequence[Row]) -> list[Row]:
    """The rows with figures that no arithmetic made."""
    return [row for row in rows if row["status"] == "ok" and row.get("origin") != "predicted"]


def _is_constant(column: Column, rows: Sequence[Row], measured: Sequence[Row]) -> bool:
    """Whether nothing is lost: other rows' levels are the same, too, and where they have a figure it is this one."""
    name = column["name"]
    belongs_to_another = column["title"][:1].islower()  # as n does, and what goes on with the title before it
    if name == "origin" or belongs_to_another or len({row[name] for row in measured}) > 1:
        return False
    return all(_says_nothing_else(column, row, measured[0][name]) for row in rows)


def _says_nothing_else(column: Column, row: Row, level: str) -> bool:
    found = row[column["name"]]
    if found == level or column["kind"] != "figure":
        return found == level
    return found == row["status"] if row["status"] != "ok" else "predicted" in found


def line(told: Sequence[tuple[str, str]]) -> str:
    """The line: titles and what stood below them."""
    return "In every measured row: " + "; ".join(f"{title} {text}" for title, text in told) + "." if told else ""
