"""The figures that a report opens with, each beside its bound: declared in report/templates/headlines.yaml, read from
tables, so that no figure is computed here and none is another than its table shows."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perfscribe import files
from perfscribe.statistics import format_figure
from perfscribe.tables import NOTHING

FILE = Path("report") / "templates" / "headlines.yaml"
NO_BOUND = "none known"
ONE_VALUE = "one value"
# What the words of the column Spread mean.
IQR, CARRIED = "IQR", "spread"
SPREADS = {
    IQR: "the interquartile range of the n samples",
    CARRIED: "the interquartile range of the n times, carried through the division that made the rate of them, or half "
    "of a speed-up's 95 % interval",
}
KEYS = {"title", "table", "column", "n", "where", "largest", "bound", "kind", "bound_where"}
KINDS = ("data sheet", "measured link", "prediction", "published")


@dataclass(frozen=True)
class Wanted:
    """One headline as declared, as the comment of its file says it."""

    title: str
    table: str
    column: str
    n: str = ""
    where: dict[str, list[str]] = field(default_factory=dict)
    largest: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)
    kind: str = ""
    bound_where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Headline:
    """One headline as a site has it; value and bound in the same unit.

    experiment, cell: what was measured, and at which levels. environments: who measured; several are named, not mixed.
    """

    title: str
    table: str
    experiment: str
    cell: dict[str, str]
    value: float
    unit: str
    spread: float | None
    spread_is: str
    n: str
    bound: float | None
    kind: str
    environments: list[str]
    flags: str

    def as_json(self) -> dict[str, Any]:
        """For the site's summary."""
        return asdict(self)

    @property
    def shown(self) -> str:
        """The figure with its unit, no finer than its spread."""
        return f"{format_figure(self.value, self.spread)} {self.unit}".strip()


def declared(root: Path) -> list[Wanted]:
    """All headlines; ValueError with one line where one is not declared as it must be."""
    path = root / FILE
    if not path.is_file():
        return []
    try:
        items = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    except yaml.YAMLError as error:
        raise ValueError(f"{FILE}: {' '.join(str(error).split())}") from error
    if not isinstance(items, list):
        raise ValueError(f"{FILE}: got {type(items).__name__}, expected a list")
    return [_wanted(number, item) for number, item in enumerate(items, start=1)]


def _wanted(number: int, item: Any) -> Wanted:
    where = f"{FILE}: entry {number}"
    if not isinstance(item, dict) or set(item) - KEYS or not {"title", "table", "column"} <= set(item):
        raise ValueError(f"{where}: expected title, table and column, and of {', '.join(sorted(KEYS))} no others")
    if ("bound" in item) != ("kind" in item) or item.get("kind", KINDS[0]) not in KINDS:
        raise ValueError(f"{where}: a bound has a kind, which is one of {', '.join(KINDS)}")
    for key in ("where", "bound_where"):
        if not isinstance(item.get(key) or {}, dict):
            raise ValueError(f"{where}: {key}: got {item[key]!r}, expected columns with levels")
    levels = {name: [str(one) for one in _listed(level)] for name, level in (item.get("where") or {}).items()}
    applies = {name: str(level) for name, level in (item.get("bound_where") or {}).items()}
    lists = {name: _listed(item.get(name, [])) for name in ("bound", "largest")}
    return Wanted(**{**item, "where": levels, "bound_where": applies, **lists})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def find(root: Path, tables: Path) -> tuple[list[Headline], list[str]]:
    """The headlines that a site's tables have, and the titles of those that they lack."""
    of_title: dict[str, list[Wanted]] = {}
    for wanted in declared(root):
        of_title.setdefault(wanted.title, []).append(wanted)
    found, lacking = [], []
    for title, entries in of_title.items():
        had = (headline for wanted in entries if (headline := _find(wanted, tables)) is not None)
        headline = next(had, None)
        if headline is None:
            lacking.append(title)
        else:
            found.append(headline)
    return found, lacking


def _find(wanted: Wanted, tables: Path) -> Headline | None:
    description_path = tables / f"{wanted.table}.json"
    if not description_path.is_file():
        return None
    description = files.read_json(description_path)
    columns = {column["name"]: column for column in description["columns"]}
    with open(tables / f"{wanted.table}.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if wanted.column not in columns:
        return None
    row = _chosen(wanted, [row for row in rows if row["status"] == "ok" and _number(row[wanted.column]) is not None])
    return None if row is None else _headline(wanted, description["experiment"], columns, row)


def _chosen(wanted: Wanted, rows: Sequence[Mapping[str, str]]) -> Mapping[str, str] | None:
    """The row that a headline asks for; where several are alike in all that it names, the first."""
    for name, levels in wanted.where.items():
        level = next((level for level in levels if any(row.get(name) == level for row in rows)), None)
        rows = [row for row in rows if level is not None and row.get(name) == level]
    for name in wanted.largest:
        sizes = [_number(row.get(name, "")) for row in rows]
        known = [size for size in sizes if size is not None]
        rows = [row for row, size in zip(rows, sizes, strict=True) if known and size == max(known)]
    return rows[0] if rows else None


def _headline(
    wanted: Wanted, experiment: str, columns: Mapping[str, Mapping[str, Any]], row: Mapping[str, str]
) -> Headline:
    column = columns[wanted.column]
    spread = _number(row.get(column["spread"], "")) if column["spread"] else None
    applies = all(row.get(name) == level for name, level in wanted.bound_where.items())
    bounds = [(name, number) for name in wanted.bound if applies and (number := _number(row.get(name, ""))) is not None]
    kind = wanted.kind
    if bounds and kind == "published":
        kind = f"published, {_source(bounds[0][0], columns)}"
    return Headline(
        title=wanted.title,
        table=wanted.table,
        experiment=experiment,
        cell={str(c["title"]): row[name] for name, c in columns.items() if c["kind"] == "factor"},
        value=float(row[wanted.column]),
        unit=_unit(str(column["title"])),
        spread=spread,
        spread_is="" if spread is None else (IQR if str(column["spread"]).endswith("_iqr") else CARRIED),
        n=row.get(wanted.n) or ONE_VALUE,
        bound=bounds[0][1] if bounds else None,
        kind=kind if bounds else NO_BOUND,
        environments=[] if row["environment"] == NOTHING else row["environment"].split("+"),
        flags="" if row["flags"] == NOTHING else row["flags"],
    )


def _unit(title: str) -> str:
    """The unit in brackets at the end of a column's title; a title without brackets is one."""
    found = re.search(r"\(([^()]*)\)$", title)
    return found[1] if found else title


def _source(name: str, columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Who published a column's figures: its title without the unit."""
    title = re.sub(r" *\([^()]*\)$", "", str(columns[name]["title"])) if name in columns else name
    return title.rsplit(", ", 1)[-1]


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text) else None
