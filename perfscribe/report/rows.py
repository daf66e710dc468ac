"""Result rows for chapters: select by factor levels, read typed values; no match gives an empty Row."""

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

LEVELS = ("factor", "setting")  # kinds of columns that describe what was measured, and how
WORDS = {"oom": "OOM", "failed": "failed", "timeout": "timeout"}  # statuses printed in cells
HALF_IQR = "half IQR"
OF_ROW = ("ok", "status", "reason", "flags")
OF_GRID = (*form.RAN, "not_run")  # excludes cells that machine or preset leave out
Cells = Mapping[str, Any]


class Mistake(ValueError):
    """Reference in a chapter to something that does not exist."""

    def __init__(self, problem: str, name: str, known: Iterable[str] = ()) -> None:
        near = difflib.get_close_matches(name, list(known), n=1)
        super().__init__(f"{problem} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


class Site:
    """Tables in results/<name>/tables, read on demand. device: rows() keeps those of cuda or cpu."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self.name, self.folder, self.device = name, folder, device
        self.gpu = device == "cuda"
        self._tables: dict[str, tables.Stored] = {}

    def table(self, table: str) -> tables.Stored:
        """Read a table; without columns and rows if the site lacks it."""
        if table not in self._tables:
            self._tables[table] = tables.read(self.folder, table)
        return self._tables[table]

    def rows(self, table: str, computed: Mapping[str, Any] | None = None, subject: str = "", /, **levels: Any) -> Rows:
        """Rows of the site's device with these levels.

        computed: further columns, each a function of a row. subject: table with the same columns for the user's code;
        its rows come first, since they were measured interleaved with ours.
        """
        known = known_tables()
        # An experiment may have been deleted with its tables, so only a nearly correct name is a mistake.
        for name in filter(None, (table, subject)):
            if name not in known and ("." not in name or difflib.get_close_matches(name, known, n=1, cutoff=0.9)):
                raise Mistake("unknown table", name, known)
        stored = self.table(table)
        own = [row for row in self.table(subject).rows if row.get("subject") == YOURS] if subject else []
        devices = (self.device, levels.get("device", self.device))
        rows = [row for row in (*own, *stored.rows) if row.get("device", self.device) in devices]
        columns = {**stored.columns, **(computed or {})} if stored.columns else {}
        return Rows(self, table, columns, rows, has_subject=bool(own)).where(**levels)

    def machine(self, row: Row) -> str:
        """Machine that measured a row, or machines of its rounds."""
        return devices_of(str(row.cells.get("environment", "")), self.folder.parent / "environments")


def of_name(root: Path, name: str) -> Site:
    """Tables of a site by name; ValueError (one line) if it has no results."""
    summary = root / "results" / name / "summary.json"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not summary.is_file():
        there = sorted(path.parent.name for path in (root / "results").glob("*/summary.json"))
        known = f"there are {', '.join(there)}" if there else "`./run report` makes it"
        raise ValueError(f"there is no report of site {name!r}; {known}")
    with form.as_written(summary):
        device = "cuda" if files.read_json(summary)["gpus"] else "cpu"
    return Site(name, summary.parent / "tables", device)


@cache
def known_tables() -> frozenset[str]:
    """Ids of all tables that experiments declare."""
    return frozenset(table for name in registry.known() for table in registry.shown(name).tables)


class Row:
    """A row; `row.column` is a level, a Quantity or a text. True if it was measured."""

    def __init__(self, table: str, columns: Mapping[str, Any], cells: Cells) -> None:
        self.table, self.columns, self.cells = table, columns, cells
        self.status = cells.get("status", "absent")
        self.reason, self.flags = cells.get("reason", ""), cells.get("flags", tables.NOTHING)
        self.ok = self.status == "ok"

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
            quantity = Quantity(float(cell), self._spread(name, column["spread"]), exact=exact)
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
        """Stored text of a column, such as the reason for a missing number."""
        return str(self.cells.get(name, ""))


class Several(list[Any]):
    """List of rows or levels; out-of-range indices return `absent`, a missing row or level."""

    def __init__(self, items: Iterable[Any], absent: Any) -> None:
        super().__init__(items)
        self.absent = absent

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Several(list.__getitem__(self, at), self.absent)
        return list.__getitem__(self, at) if -len(self) <= at < len(self) else self.absent


class Rows:
    """Rows of one table; true if there are any, measured or not."""

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
        """Rows as stored in the table's file."""
        return self._rows

    def __iter__(self) -> Iterator[Row]:
        return (Row(self.table, self.columns, row) for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _like(self, rows: Sequence[Cells], /, **levels: Any) -> Rows:
        return Rows(self.site, self.table, self.columns, rows, {**self._given, **levels}, self.has_subject)

    def where(self, **levels: Any) -> Rows:
        """Rows whose columns have these values, one or a list; a condition on measured columns keeps rows not ok."""
        for name in levels:
            if self.columns and name not in self.columns:
                raise Mistake(f"table {self.table} has no column", name, self.columns)
        wanted = {
            name: [str(one) for one in (level if isinstance(level, list | tuple) else [level])]
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
        """First row with these levels, preferably a measured one; a missing row if there is none."""
        rows = self.where(**levels)
        cells = next((row for row in rows._rows if row["status"] == "ok"), rows._rows[0] if rows._rows else None)
        return Row(self.table, self.columns, rows._given if cells is None else cells)

    def at(self, row: Row, /, **levels: Any) -> Row:
        """Row of this table with the levels that it shares with a row of another table."""
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
        """Rows for each cell of the homework, if on a GPU, and for each further cell of this site.

        homework: levels that it asks for, by column. Numbers are sorted, names keep the homework's order.
        """
        own = [tuple(str(row[name]) for name in homework) for row in self._rows if row["status"] in OF_GRID]
        lists = [[str(level) for level in levels] if self.site.gpu else [] for levels in homework.values()]
        orders = []
        for place, asked in enumerate(lists):
            levels = list(dict.fromkeys([*asked, *(cell[place] for cell in own)]))
            orders.append(sorted(levels, key=float) if all(re.fullmatch(r"[\d.]+", one) for one in levels) else levels)
        cells = {*product(*lists), *own}
        ordered = sorted(
            cells, key=lambda cell: [order.index(level) for order, level in zip(orders, cell, strict=True)]
        )
        rows = (self.row(**dict(zip(homework, map(tables.as_cell, cell), strict=True))) for cell in ordered)
        return Several(rows, self.absent)

    def values(self, name: str, homework: Sequence[Any] = ()) -> Several:
        """Levels of a column in order: the homework's (on a GPU) and this site's."""
        return Several((row[name] for row in self.grid(**{name: homework})), MISSING)

    def handed_in(self, ours: str) -> str:
        """Implementation whose rows are handed in: the user's if it ran, else ours."""
        yours = f"{ours.removesuffix(' (ours)')} ({YOURS})"
        return yours if self.has_subject and self.where(implementation=yours).tried else ours

    @property
    def tried(self) -> bool:
        """Return whether any row ran, with or without success."""
        return any(row["status"] in form.RAN for row in self._rows)

    @property
    def declined(self) -> str:
        """Reason why no row ran, e.g. user code that is not implemented or lacks a package; else ""."""
        return "" if self.tried or not self._rows else str(self._rows[0]["reason"])

    def label(self, ours: str) -> str:
        """Label of handed_in(ours) in a table, with "(ours)" if there are user rows."""
        name = self.handed_in(ours)
        return name if name.startswith("torch") or "(" in name or not self.has_subject else f"{name} (ours)"

    def pick(self, **levels: Any) -> Row:
        """The homework's cell; if it was not measured, the largest measured one by these levels in order."""
        row = self.row(**levels)
        return row if row.ok or not self.ok else self.ok.largest(*levels)

    @property
    def absent(self) -> Row:
        """A missing row of this table."""
        return Row(self.table, self.columns, self._given)

    def _of(self, *statuses: str) -> Rows:
        return self._like([row for row in self._rows if row["status"] in statuses])

    @cached_property
    def ok(self) -> Rows:
        """Rows that were measured."""
        return self._of("ok")

    @cached_property
    def oom(self) -> Rows:
        """Rows that ran out of memory."""
        return self._of("oom")

    @property
    def broken(self) -> Rows:
        """Rows that failed or timed out."""
        return self._of("failed", "timeout")

    @property
    def all(self) -> Several:
        """All rows in the table's order."""
        return Several(self, self.absent)

    def sorted_by(self, *columns: str, reverse: bool = False) -> Several:
        """Measured rows in ascending order of these numbers or levels, without rows that lack one."""
        rows = [row for row in self.ok if all(number(row[column]) == number(row[column]) for column in columns)]
        rows.sort(key=lambda row: [number(row[column]) for column in columns], reverse=reverse)
        return Several(rows, self.absent)

    def _order(self, *levels: str) -> Callable[[Row], list[float]]:
        """Sort key: by these levels in order; names sort in the table's order."""
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
        """Number, or range of numbers such as `3 to 50`, over measured rows; for sample counts."""
        numbers = sorted({number(row[column]) for row in self.ok if row[column]})
        return " to ".join(dict.fromkeys(f"{one:g}" for one in (numbers[0], numbers[-1]))) if numbers else MISSING

    def shared(self, column: str, default: str = "") -> Any:
        """Level of all measured rows; several are joined by `and`."""
        return " and ".join(dict.fromkeys(str(row[column]) for row in self.ok)) or default or MISSING

    @property
    def rounds(self) -> str:
        """Number of rounds per row and the meaning of ±, in words."""
        return "one run each" if self.deviation == HALF_IQR else f"median ± {self.deviation}"

    @property
    def deviation(self) -> str:
        """Meaning of ± after the median of a time, in words."""
        counts = sorted({int(row.get("rounds", 1)) for row in self._rows if row["status"] == "ok"})
        if counts[-1:] in ([], [1]):
            return HALF_IQR
        span = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
        return f"half the range of {span} rounds"
