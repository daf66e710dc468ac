"""The tables of a site as its report run left them: results/<site>/tables/<id>.csv and .json."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from perfscribe import files, plan
from perfscribe.filling import units
from perfscribe.tables import ROW_COLUMNS

SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
TABLE = re.compile(r"[a-z0-9_]+\.[A-Za-z0-9_]+")
MEASURED = "measured"


@dataclass(frozen=True)
class SiteTable:
    """columns: name, title, kind, spread and exact of each by name; rows: every text of the CSV by column."""

    id: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Mapping[str, str]]

    @property
    def shown(self) -> list[Mapping[str, Any]]:
        """The columns that the report shows."""
        return [column for column in self.columns.values() if column["kind"] != "unshown"]

    def name_of(self, word: str) -> str:
        """The column with this name, or the first with this title; empty where there is none."""
        if word in self.columns:
            return word
        wanted = word.casefold()
        return next((c["name"] for c in self.shown if wanted in (c["name"].casefold(), c["title"].casefold())), "")


class Site:
    """A site's results."""

    def __init__(self, root: Path, name: str) -> None:
        """ValueError with one line where there are no tables of such a site."""
        self.folder = root / "results" / name / "tables"
        if not SITE.fullmatch(name) or not self.folder.is_dir():
            there = sorted(path.parent.name for path in (root / "results").glob("*/tables") if path.is_dir())
            known = f"there are {', '.join(there)}" if there else "`./run report` makes them"
            raise ValueError(f"there are no tables of site {name!r}; {known}")
        self.name = name
        self.root = root
        self.read: dict[str, SiteTable | None] = {}

    @cached_property
    def ids(self) -> list[str]:
        """Of all tables that lie there."""
        return sorted(path.stem for path in self.folder.glob("*.csv") if path.with_suffix(".json").is_file())

    def table(self, table_id: str) -> SiteTable | None:
        """The table; None where the site did not measure it. ValueError, one line: no experiment makes it at all."""
        if table_id not in self.read:
            known = table_id in self.ids
            if not known and table_id not in declared(self.root):
                near = difflib.get_close_matches(table_id, [*declared(self.root), *self.ids], 1)
                hint = f"; is it {near[0]}?" if near else ""
                raise ValueError(f"no experiment makes the table {table_id}{hint}")
            self.read[table_id] = _read(self.folder, table_id) if known else None
        return self.read[table_id]


@cache
def declared(root: Path) -> tuple[str, ...]:
    """Ids of every table that an experiment makes."""
    return tuple(one for name in plan.known_experiments(root) for one in plan.read_presentation(name, root).tables)


def _read(folder: Path, table_id: str) -> SiteTable:
    description = files.read_json(folder / f"{table_id}.json")
    path = folder / f"{table_id}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [dict(row) for row in csv.DictReader(stream, strict=True)]
        columns = {column["name"]: column for column in description["columns"]}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if any(None in row or None in row.values() or not {*columns, *ROW_COLUMNS} <= row.keys() for row in rows):
        raise ValueError(f"{path}: its columns are not those of {table_id}.json")
    return SiteTable(table_id, columns, rows)


def stored_unit(column: Mapping[str, Any], exceptions: Mapping[str, str]) -> str:
    """The unit that a column's figures are in: what its title says, but for the exceptions."""
    return exceptions.get(column["name"], units.in_heading(column["title"]))


def same_level(text: str, level: str) -> bool:
    """Whether a cell of a document names a factor's level: as a number or as words, whatever their case."""
    return _level(text) == _level(level)


def _level(text: str) -> float | str:
    line = " ".join(text.split()).casefold()
    bare = line.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", line) else line
    return float(bare) if re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", bare) else line
