"""Sites made for tests of `fill`: tables that experiments make of planned cells, each figure a number of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import unmeasured
from workspace import ROOT

from perfscribe import files, plan, tables
from perfscribe.filling import document
from perfscribe.filling.outcome import Outcome
from perfscribe.filling.verb import Filler

SITE = "made"


@cache
def owner(table_id: str) -> str:
    """The experiment that makes a table."""
    return next(one for one in unmeasured.EXPERIMENTS if table_id in plan.read_presentation(one, ROOT).tables)


@cache
def planned(table_id: str) -> tables.Table:
    """The table of cells that gave nothing."""
    return unmeasured.tables(owner(table_id), "skipped")[table_id]


@cache
def measured(table_id: str) -> tables.Table:
    """The same with figures: of each row and column another one."""
    made = planned(table_id)
    frame = made.frame.astype(object)
    frame["status"], frame["reason"] = "ok", ""
    for place, column in enumerate(column for column in made.columns if column.kind in ("figure", "unshown")):
        frame[column.name] = pd.Series([1.0 + place + row / 128 for row in range(len(frame))], frame.index, object)
    columns = [replace(column, spread="", spread_get=None) for column in made.columns]
    return replace(made, frame=frame, columns=columns)


def write(root: Path, *made: tables.Table, site: str = SITE) -> None:
    """Tables as a report run of a site leaves them."""
    for table in made:
        tables.write(table, root / "results" / site / "tables")


def write_rows(
    root: Path, table_id: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[dict[str, Any]]
) -> None:
    """A table of (name, title, kind) and rows of texts; what a row does not say of itself is that it is ok."""
    folder = root / "results" / SITE / "tables"
    own = {"status": "ok", "reason": "none", "flags": "none", "environment": "e"}
    names = [*(name for name, _, _ in columns), *own]
    lines = [names, *([str({**own, **row}[name]) for name in names] for row in rows)]
    text = "".join(",".join(f'"{cell}"' if "," in cell else cell for cell in line) + "\n" for line in lines)
    files.write_text(folder / f"{table_id}.csv", text)
    described = [{"name": n, "title": t, "kind": k, "spread": "", "exact": k == "factor"} for n, t, k in columns]
    files.write_json(folder / f"{table_id}.json", {"id": table_id, "columns": described})


def filled(root: Path, text: str, site: str = SITE, overwrite: bool = False) -> tuple[str, list[Outcome]]:
    """The text after `fill`, and what became of its tables."""
    found = document.parse(text)
    outcomes = Filler(root, found, site, overwrite).fill()
    return "".join(found.lines), outcomes


def cells(text: str) -> list[list[list[str]]]:
    """Every table of a text as rows of what its cells read."""
    return [[list(row.texts) for row in table.rows] for table in document.parse(text).tables]
