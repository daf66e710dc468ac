"""A site's tables as the hand-in reads them: figures by table, column and levels."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from perfscribe.records import form
from perfscribe.show import references
from perfscribe.show.markdown_tables import as_number
from perfscribe.show.provenance import devices_of
from perfscribe.show.rounding import GIB_AS_GB, NO_FIGURE, Figure
from perfscribe.subjects import YOURS

NOTHING = "-"
IN_GIB = ("_gib", "avg_mem_total_gb", "avg_mem_alloc_gb", "peak_mem_alloc_gb")  # how columns in GiB end

Row = Mapping[str, str]

# Where the rows of the user's own code are that a table of ours has for ours, with the same columns.
SUBJECT_TABLES = {
    "cs336.flash_cells": "cs336.subject_flash",
    "cs336.flash_leaderboard": "cs336.subject_leaderboard",
    "cs336.ddp_check": "cs336.subject_ddp",
    "cs336.ddp_benchmark": "cs336.subject_ddp",
    "cs336.ddp_timeline": "cs336.subject_ddp",
    "cs336.sharding_memory": "cs336.subject_sharding",
    "cs336.sharding_times": "cs336.subject_sharding",
    "cs336.sharding_kinds": "cs336.subject_sharding_kinds",
}

RAN = ("ok", "oom", "timeout", "failed")
OF_GRID = (*RAN, "not_run")  # not those that this machine or preset leaves out


@dataclass
class Site:
    """results/<site>/tables, read when they are asked for. device: whose rows count, cuda or cpu."""

    name: str
    folder: Path
    device: str
    _read: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpu = self.device == "cuda"
        self.one_device = "one GPU" if self.gpu else "CPU"  # what a single process has
        self.rank, self.ranks_are = ("GPU", "GPUs") if self.gpu else ("process", "processes")  # what ranks run on

    def ranks(self, count: int | str) -> str:
        """So many GPUs, or processes of a CPU."""
        return f"{count} {self.rank if str(count) == '1' else self.ranks_are}"

    def table(self, table: str) -> list[Row]:
        """All rows of a table; none where the site has no such table."""
        if table not in self._read:
            path = self.folder / f"{table}.csv"
            rows: list[Row] = []
            if path.is_file():
                with form.as_written(path), open(path, newline="", encoding="utf-8") as stream:
                    rows = list(csv.DictReader(stream))
                    if any(None in row or None in row.values() or "status" not in row for row in rows):
                        raise LookupError("rows and header differ")
            theirs = self.table(SUBJECT_TABLES[table]) if table in SUBJECT_TABLES else ()
            # Theirs first: what was timed in turns with them goes before the same of a launch of ours.
            self._read[table] = [*(row for row in theirs if row["subject"] == YOURS), *rows]
        return self._read[table]

    def rows(self, table: str, **levels: Any) -> Iterator[Row]:
        """Rows of the site's device with these levels."""
        wanted = {name: str(level) for name, level in levels.items()}
        for row in self.table(table):
            if row.get("device", self.device) in (self.device, levels.get("device", self.device)) and all(
                row.get(name) == level for name, level in wanted.items()
            ):
                yield row

    def row(self, table: str, **levels: Any) -> Row | None:
        """The first such row, one that is ok before others."""
        found = list(self.rows(table, **levels))
        return next(filter(ok, found), found[0] if found else None)

    def largest(self, table: str, column: str, *by: str, **levels: Any) -> Row | None:
        """The row of the greatest levels that has a figure in this column."""
        rows = [row for row in self.rows(table, **levels) if figure(row, column)]
        return max(rows, key=lambda row: [float(row[name]) for name in by], default=None)

    @property
    def has_subject(self) -> bool:
        """Whether the user's own code was measured: each row then says whose it is."""
        return any(row["subject"] == YOURS for row in self.table("cs336.subjects"))

    def handed_in(self, table: str, ours: str, yours: str) -> str:
        """The implementation whose rows are handed in: the user's where it is written, else ours."""
        written = any(row["status"] != "unsupported" for row in self.rows(table, implementation=yours))
        return yours if self.has_subject and written else ours

    def levels(self, table: str, column: str, **levels: Any) -> list[str]:
        """Different entries of a column in rows that are ok, in their order."""
        return list(dict.fromkeys(row[column] for row in filter(ok, self.rows(table, **levels))))

    def swept(
        self, table: str, column: str, on_gpu: Sequence[str], on_cpu: Sequence[str], **levels: Any
    ) -> Sequence[str]:
        """Levels of a hand-in's rows: on a GPU the homework's, else those that ran or are still to run, or on_cpu."""
        own = dict.fromkeys(row[column] for row in self.rows(table, **levels) if row["status"] in OF_GRID)
        return on_gpu if self.gpu else list(own) or on_cpu

    @property
    def emulated(self) -> bool:
        """Whether the nodes that its trainings are on are one machine, as the test of their links saw."""
        tests = [row for row in self.rows("fsdp.preflight", status="ok") if row["on_nodes"] != "1"]
        return bool(tests) and all(entry(row, "machines") == "1" for row in tests)

    def machine(self, row: Row) -> str:
        """What measured a row, or which machines its rounds."""
        return devices_of(row["environment"], self.folder.parent / "environments")

    def machines(self, rows: Iterable[Row]) -> str:
        """How many ranks ran on which machines, at the end of a set-up; nothing where all rounds are of the same."""
        ranks: dict[str, dict[str, None]] = {}
        for row in rows:
            ranks.setdefault(self.machine(row), {})[row.get("world_size", "1")] = None
        told = (f"{self.ranks(' and '.join(of))} on {names}" for names, of in ranks.items())
        several = len(ranks) > 1 or any(" and " in names for names in ranks)
        return f"; machines: {', '.join(told)}" if several else ""

    def value(self, table: str, column: str, **levels: Any) -> Figure:
        """The figure of a cell, in its table's unit."""
        return figure(self.row(table, **levels), column)

    def of_so_many(self, table: str, column: str, **levels: str) -> str:
        """How many samples a table's figures are of, where cells differ in it from the fewest to the most."""
        found = sorted(map(int, self.levels(table, column, **levels)))
        return f" of {from_to(found[0], found[-1])}" if found else ""

    def mean_of(self, table: str, column: str, **levels: str) -> str:
        """What ± is beside a mean of so many."""
        return f"Mean ± std{self.of_so_many(table, column, **levels)}"

    def median_of(self, table: str, column: str, **levels: str) -> str:
        """What ± is beside a median of so many."""
        return f"Median ± half IQR{self.of_so_many(table, column, **levels)}"

    def batch_of(self, table: str, usual: str) -> str:
        """The batch of a table's rows; the usual one where there are none."""
        return " and ".join(self.levels(table, "batch")) or usual


def figure(row: Row | None, column: str, scale: float = 1.0, unit: str = "") -> Figure:
    """The figure of a row, times `scale`, memory in GB where the column has GiB; false where there is none.

    A row that ran out of memory has those of the passes before.
    column: X, whose spread is half of X_iqr or X_spread; or X_mean, whose spread is X_std.
    """
    if row is None or row["status"] not in ("ok", "oom") or (value := as_number(row.get(column, ""))) is None:
        return NO_FIGURE
    spread = as_number(row.get(column.removesuffix("_mean") + "_std", "")) if column.endswith("_mean") else None
    for name in (f"{column}_iqr", f"{column}_spread"):
        if spread is None and (whole := as_number(row.get(name, ""))) is not None:
            spread = whole / 2
    scale *= GIB_AS_GB if column.endswith(IN_GIB) else 1.0
    return Figure(value * scale, None if spread is None else spread * scale, unit)


def ok(row: Row | None) -> TypeGuard[Row]:
    """Whether it was measured."""
    return row is not None and row["status"] == "ok"


def entry(row: Row | None, column: str, other: str = "") -> str:
    """What stands in a row, or other where there is no row or no such column."""
    return (row or {}).get(column, other)


def fault(row: Row) -> str:
    """What a check of a user's own code says where it failed, or why it did not end."""
    return row["reason"].rpartition("WrongResult: ")[2] if row["status"] in ("failed", "timeout", "oom") else ""


def so_many(count: int | str, noun: str) -> str:
    """So many of them."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def from_to(least: object, most: object) -> str:
    """The two, or the one that both are."""
    return " to ".join(dict.fromkeys([f"{least}", f"{most}"]))


def noisy(gain: Figure) -> bool:
    """Whether runs vary more than a speed-up differs from none."""
    return abs(gain.value - 1) <= (gain.spread or 0.0)


def ends(figures: Iterable[Figure]) -> tuple[Figure, Figure]:
    """The least and the greatest of those that are there."""
    found = sorted(filter(None, figures), key=lambda one: one.value) or [NO_FIGURE]
    return found[0], found[-1]


def printed(experiment: str, metric: str, source: str, **levels: str | int) -> str:
    """A published figure as its source prints it; a word in its place as code."""
    found = references.find(experiment, metric, source, **levels)
    if not found:
        return NOTHING
    return found[0].text if found[0].value is not None else f"`{found[0].text}`"
