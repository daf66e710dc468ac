"""Rows of a site's tables, as chapters use them: selected by levels, with typed values.

A table that a chapter names is a Rows: `attention.where(dtype="fp32").ok.largest("seq_len").forward_ms` is a Quantity.
A selection without rows gives a missing Row, whose values print as missing, so that templates need no conditions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from perfscribe.base import files, registry
from perfscribe.records import form
from perfscribe.report.quantities import MISSING, NOTHING, Quantity, from_gib, is_incomplete, number
from perfscribe.show import tables
from perfscribe.show.provenance import devices_of
from perfscribe.subjects import YOURS

LEVELS = ("factor", "setting")  # kinds of columns that are chosen before a measurement
WORDS = {"oom": "OOM", "failed": "failed", "timeout": "timeout"}  # text of a cell without a number, by status
HALF_IQR = "half IQR"
OF_ROW = ("ok", "status", "reason", "flags")  # attributes of Row that are no columns
Cells = Mapping[str, Any]


class Mistake(ValueError):
    """A chapter or a comment names something that does not exist; the text proposes the most similar of `known`."""

    def __init__(self, problem: str, name: str, known: Iterable[str] = ()) -> None:
        near = difflib.get_close_matches(name, list(known), n=1)
        super().__init__(f"{problem} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


class Site:
    """Tables of a site. folder: results/<name>/tables; device: cuda or cpu, whose rows rows() returns."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self.name, self.folder, self.device = name, folder, device
        self.gpu = device == "cuda"
        self._tables: dict[str, tables.Stored] = {}

    def table(self, table: str) -> tables.Stored:
        """Table by id, read once; without columns and rows if the site lacks it."""
        if table not in self._tables:
            self._tables[table] = tables.read(self.folder, table)
        return self._tables[table]

    def rows(self, table: str, computed: Mapping[str, Any] | None = None, subject: str = "", /, **levels: Any) -> Rows:
        """Rows of a table that have these levels, on the site's device unless `device` is among them.

        computed: further columns, each a function of a Row. subject: id of a table with the same columns, whose rows of
        the user's code are put first. Raises Mistake for an unknown table or column.
        """
        known = known_tables()
        # Other names may be those of an experiment that was deleted with its tables.
        for name in filter(None, (table, subject)):
            if name not in known and ("." not in name or difflib.get_close_matches(name, known, n=1, cutoff=0.9)):
                raise Mistake("unknown table", name, known)
        stored = self.table(table)
        theirs = [row for row in self.table(subject).rows if row.get("subject") == YOURS] if subject else []
        devices = (self.device, levels.get("device", self.device))
        rows = [row for row in (*theirs, *stored.rows) if row.get("device", self.device) in devices]
        columns = {**stored.columns, **(computed or {})} if stored.columns else {}
        return Rows(self, table, columns, rows, has_subject=bool(theirs)).where(**levels)

    def machine(self, row: Row) -> str:
        """Names of the machines that measured a row."""
        return devices_of(str(row.cells.get("environment", "")), self.folder.parent / "environments")


class Renamed(Site):
    """A site whose levels have an edition's names: {column: {name in the tables: name}}, without rows of the name "".

    renamed: names that figures of its tables show, with the edition's; longer texts, as `model 2.7B`, only contain one.
    """

    def __init__(self, site: Site, names: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(site.name, site.folder, site.device)
        self._site, self._names = site, names
        self.renamed: dict[str, str] = {}

    def table(self, table: str) -> tables.Stored:
        """Table by id, with the edition's names."""
        stored = self._site.table(table)
        rows = list(stored.rows)
        for column in self._names.keys() & stored.columns.keys():
            names = self._names[column]
            there = {row[column] for row in rows if row.get("status", "ok") == "ok"}
            self.renamed |= {name: new for name, new in names.items() if name in there and " " not in name}
            rows = [
                {**row, column: names.get(row[column], row[column])} for row in rows if names.get(row[column]) != ""
            ]
        return tables.Stored(stored.columns, rows)


def of_name(root: Path, name: str) -> Site:
    """Return a site by name; ValueError (one line) if it has no results."""
    summary = root / "results" / name / "summary.json"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not summary.is_file():
        names = sorted(path.parent.name for path in (root / "results").glob("*/summary.json"))
        known = f"there are {', '.join(names)}" if names else "`./run report` makes it"
        raise ValueError(f"there is no report of site {name!r}; {known}")
    with form.as_written(summary):
        device = "cuda" if files.read_json(summary)["gpus"] else "cpu"
    return Site(name, summary.parent / "tables", device)


@cache
def known_tables() -> frozenset[str]:
    """Ids of the tables of all experiments."""
    return frozenset(table for name in registry.known() for table in registry.shown(name).tables)


class Row:
    """A row of a table; true if its status is ok.

    `row.column` and `row["column"]` are a level, a Quantity, or a text. A figure that the row lacks is MISSING, with
    its status and reason for rows that are not ok. A missing row (status "absent") has only the levels asked for.
    """

    def __init__(self, table: str, columns: Mapping[str, Any], cells: Cells) -> None:
        self.table, self.columns, self.cells = table, columns, cells
        self.status = cells.get("status", "absent")
        self.reason, self.flags = cells.get("reason", ""), cells.get("flags", tables.NOTHING)
        self.ok = self.status == "ok"
        boots = str(cells.get("boots", "")) if self.ok else ""
        self.boots = frozenset(boots.split(tables.BETWEEN_BOOTS)) - {"", tables.NOTHING}

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name in OF_ROW:  # Jinja's selectattr looks items up first
            return getattr(self, name)
        column = self.columns.get(name)
        if callable(column):
            return column(self)
        if self.columns and column is None:
            raise Mistake(f"table {self.table} has no column", name, self.columns)
        cell = self.cells.get(name)
        if column is None or cell is None:
            return MISSING
        if column["kind"] in LEVELS:
            return cell
        if isinstance(cell, int | float) and self.status in ("ok", "oom"):
            exact = column["exact"] and float(cell).is_integer()
            quantity = Quantity(float(cell), self._spread(name, column["spread"]), exact=exact, boots=self.boots)
            return from_gib(quantity) if name.endswith("_gib") else quantity
        if self.ok:
            return cell if column["exact"] else MISSING
        return replace(MISSING, word=WORDS.get(self.status, NOTHING), why=self.reason)

    def _spread(self, name: str, declared: str) -> float | None:
        """Half the range over rounds, half the interquartile range, or a standard deviation; None if unknown."""
        for column in (declared, f"{name}_iqr", f"{name}_spread"):
            if isinstance(cell := self.cells.get(column), int | float):
                return float(cell) if column.endswith("_std") else cell / 2
        return None

    def text(self, name: str) -> str:
        """Stored text of a column, e.g. why there is no number; "" without the column."""
        return str(self.cells.get(name, ""))


def _span(values: Iterable[float]) -> Any:
    """Text of the range of numbers, e.g. `3 to 50`, or of the only one."""
    numbers = sorted(set(values))
    return " to ".join(dict.fromkeys(f"{end:g}" for end in (numbers[0], numbers[-1]))) if numbers else MISSING


class Several(list[Any]):
    """List whose indices out of range give `absent`, a missing row or level."""

    def __init__(self, items: Iterable[Any], absent: Any) -> None:
        super().__init__(items)
        self.absent = absent

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Several(list.__getitem__(self, at), self.absent)
        return list.__getitem__(self, at) if -len(self) <= at < len(self) else self.absent


class Rows:
    """Rows of one table; true if there are any, whatever their status.

    columns: described as in the table's JSON file, or a function of a Row. given: levels that the selection fixed; a
    missing row has them. has_subject: whether the user's code has rows.
    """

    def __init__(
        self,
        site: Site,
        table: str,
        columns: Mapping[str, Any],
        rows: Sequence[Cells],
        given: Cells | None = None,
        has_subject: bool = False,
    ) -> None:
        self.site, self.table, self.columns, self.has_subject = site, table, columns, has_subject
        self._rows, self._given = rows, given or {}

    @property
    def stored(self) -> Sequence[Cells]:
        """Rows as in the table's file."""
        return self._rows

    def __iter__(self) -> Iterator[Row]:
        return (Row(self.table, self.columns, row) for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _like(self, rows: Sequence[Cells], /, **levels: Any) -> Rows:
        return Rows(self.site, self.table, self.columns, rows, {**self._given, **levels}, self.has_subject)

    def _require(self, names: Iterable[str]) -> None:
        for name in names:
            if self.columns and name not in self.columns:
                raise Mistake(f"table {self.table} has no column", name, self.columns)

    def where(self, **levels: Any) -> Rows:
        """Rows with these levels (several as a list). Measured columns select among ok rows; others stay."""
        self._require(levels)
        wanted = {
            name: list(map(str, level if isinstance(level, list | tuple) else [level]))
            for name, level in levels.items()
        }

        def fits(row: Cells) -> bool:
            for name, texts in wanted.items():
                if str(row[name]) not in texts and (row["status"] == "ok" or self.columns[name]["kind"] in LEVELS):
                    return False
            return True

        known = {name: texts[0] for name, texts in wanted.items() if len(texts) == 1 and not is_incomplete(texts[0])}
        single = {name: tables.as_cell(text) for name, text in known.items()}
        return self._like([row for row in self._rows if fits(row)], **single)

    def row(self, **levels: Any) -> Row:
        """First row with these levels that is ok, else the first; a missing row if there is none."""
        rows = self.where(**levels)
        cells = next((row for row in rows._rows if row["status"] == "ok"), rows._rows[0] if rows._rows else None)
        return Row(self.table, self.columns, rows._given if cells is None else cells)

    def at(self, row: Row, /, **levels: Any) -> Row:
        """Row of this table that has the levels of a row of another table, in the factors that both tables have."""
        shared = {
            name: row.cells[name]
            for name, column in self.columns.items()
            if not callable(column)
            and column["kind"] == "factor"
            and name in row.cells
            and name not in levels
            and name not in self._given
        }
        return self.row(**shared, **levels)

    def grid(self, **homework: Sequence[Any]) -> Several:
        """Rows to hand in: on a GPU each combination of the homework's levels, and others that ran.

        Of a level that the homework does not ask for, such as a size of another edition, at least one row must have
        fitted. Without a GPU, all rows, also those that were not run. homework: levels by column. Numbers are sorted,
        names are in the homework's order. Rows that differ only in columns that are not named share a combination, of
        which row() takes one.
        """
        self._require(homework)
        statuses = form.RAN if self.site.gpu else (*form.RAN, "not_run")
        asked = [[str(level) for level in levels] if self.site.gpu else [] for levels in homework.values()]
        known = {name: [*levels, *(row[name] for row in self.ok._rows)] for name, levels in homework.items()}
        rows = self.where(**known)._rows if self.site.gpu else self._rows
        of_site = [tuple(str(row[name]) for name in homework) for row in rows if row["status"] in statuses]
        orders = []
        for place, of_homework in enumerate(asked):
            levels = list(dict.fromkeys([*of_homework, *(cell[place] for cell in of_site)]))
            are_numbers = all(re.fullmatch(r"[\d.]+", level) for level in levels)
            orders.append(sorted(levels, key=float) if are_numbers else levels)
        ordered = sorted(
            {*product(*asked), *of_site},
            key=lambda cell: [order.index(level) for order, level in zip(orders, cell, strict=True)],
        )
        chosen = (self.row(**dict(zip(homework, map(tables.as_cell, cell), strict=True))) for cell in ordered)
        return Several(chosen, self.absent)

    def values(self, name: str, homework: Sequence[Any] = ()) -> Several:
        """Levels of a column, ordered as in grid()."""
        return Several((row[name] for row in self.grid(**{name: homework})), MISSING)

    def handed_in(self, ours: str) -> str:
        """Name of the implementation to hand in: the user's if any of its rows ran, else ours."""
        yours = f"{ours.removesuffix(' (ours)')} ({YOURS})"
        return yours if self.has_subject and self.where(implementation=yours).tried else ours

    @property
    def tried(self) -> bool:
        """Whether any row ran, with or without success."""
        return any(row["status"] in form.RAN for row in self._rows)

    @property
    def declined(self) -> str:
        """Reason why no row ran, e.g. user code that is not implemented; "" if one ran or there are no rows."""
        return "" if self.tried or not self._rows else str(self._rows[0]["reason"])

    def label(self, ours: str) -> str:
        """Label of handed_in(ours) in a table; ours gets "(ours)" if the user's code has rows."""
        name = self.handed_in(ours)
        return name if name.startswith("torch") or "(" in name or not self.has_subject else f"{name} (ours)"

    def pick(self, **levels: Any) -> Row:
        """Row with the homework's levels; if it is not ok, the largest row that is, by these levels in order."""
        row = self.row(**levels)
        return row if row.ok or not self.ok else self.ok.largest(*levels)

    @property
    def absent(self) -> Row:
        """A missing row of this selection."""
        return Row(self.table, self.columns, self._given)

    def _with_status(self, *statuses: str) -> Rows:
        return self._like([row for row in self._rows if row["status"] in statuses])

    @cached_property
    def ok(self) -> Rows:
        """Rows with status ok."""
        return self._with_status("ok")

    @cached_property
    def oom(self) -> Rows:
        """Rows that ran out of memory."""
        return self._with_status("oom")

    @property
    def broken(self) -> Rows:
        """Rows that failed or timed out."""
        return self._with_status("failed", "timeout")

    @property
    def all(self) -> Several:
        """List of all rows, in the table's order."""
        return Several(self, self.absent)

    def sorted_by(self, *columns: str, reverse: bool = False) -> Several:
        """Rows that are ok, ascending by these columns; rows that lack one of them are left out."""
        rows = [row for row in self.ok if all(number(row[column]) == number(row[column]) for column in columns)]
        rows.sort(key=lambda row: [number(row[column]) for column in columns], reverse=reverse)
        return Several(rows, self.absent)

    def _order(self, *levels: str) -> Callable[[Row], list[float]]:
        """Sort key by these levels; names sort in the table's order."""
        seen = {level: list(dict.fromkeys(row[level] for row in self)) for level in levels}
        return lambda row: [
            row[level] if isinstance(row[level], int | float) else seen[level].index(row[level]) for level in levels
        ]

    def smallest(self, *levels: str) -> Row:
        """Row with the smallest levels; a missing row if there are none."""
        return min(self, key=self._order(*levels), default=self.absent)

    def largest(self, *levels: str) -> Row:
        """Row with the largest levels; a missing row if there are none."""
        return max(self, key=self._order(*levels), default=self.absent)

    def span(self, column: str) -> Any:
        """Range of a column over rows that are ok, e.g. `3 to 50` samples, or its only number."""
        return _span(number(row[column]) for row in self.ok if row[column])

    def span_of_round(self, column: str) -> Any:
        """Range of the samples of one round, by the column of a cell's samples over all its rounds."""
        rounds = [int(row.get("rounds", 1)) for row in self._rows if row["status"] == "ok"]
        return _span(number(row[column]) / count for row, count in zip(self.ok, rounds, strict=True) if row[column])

    def shared(self, column: str, default: str = "") -> Any:
        """Levels of a column over rows that are ok, joined by `and`."""
        return " and ".join(dict.fromkeys(str(row[column]) for row in self.ok)) or default or MISSING

    @property
    def rounds(self) -> str:
        """Meaning of a number and its ±, in words: `median ± half the range of 3 rounds`."""
        return "one run each" if self.deviation == HALF_IQR else f"median ± {self.deviation}"

    @property
    def deviation(self) -> str:
        """Meaning of ± in words: `half the range of 3 rounds`."""
        counts = sorted({int(row.get("rounds", 1)) for row in self._rows if row["status"] == "ok"})
        if counts[-1:] in ([], [1]):
            return HALF_IQR
        several = [str(count) for count in counts if count > 1]
        span = " to ".join(dict.fromkeys((several[0], several[-1])))
        # A cell of one round has no range, so its ± is the half IQR.
        return f"half the range of {span} rounds{', or half IQR where there is one,' if counts[0] == 1 else ''}"
