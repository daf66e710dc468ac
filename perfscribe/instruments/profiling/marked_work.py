"""Device work of every process in a SQLite export of Nsight Systems, by the NVTX ranges that the processes marked.

Work belongs to a range of its own process within which it began on the device. That holds for a range at whose end the
device was waited for, whichever thread launched the work: autograd's threads launch backward, and NCCL's collectives.
(nsys_export.py reads whole traces of one program and gives work to ranges by its launch.) Tables and columns as there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from perfscribe.instruments.profiling.nsys import NO_RANGES
from perfscribe.instruments.profiling.nsys_export import PROCESS_MASK, STYLES, opened, table_names, tool

COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "[CUDA memcpy]", "CUPTI_ACTIVITY_KIND_MEMSET": "[CUDA memset]"}
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@dataclass(frozen=True)
class Work:
    """A kernel (by its demangled name), a copy or a memset; ns on the device."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Time on the device."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Marked:
    """tool: who traced ("nsys 2025.3.1"). work: by range, in order of start; ranges_ns: each range's time on the host.

    has_kernels: whether the report holds any kernel at all, in these ranges or outside.
    """

    tool: str
    work: dict[str, list[Work]]
    ranges_ns: dict[str, int]
    has_kernels: bool


def read(path: Path, names: Collection[str]) -> Marked:
    """The work of the ranges of these names, each of which one process has marked once.

    ValueError with one line: the file is no export of nsys, or a range is missing or there more than once.
    """
    with opened(path) as export:
        tables, by = table_names(export), tool(export)
        found: dict[str, tuple[int, int, int]] = {}
        for name, start, end, process in _ranges(export) if "NVTX_EVENTS" in tables else ():
            if name in found:
                raise ValueError(f"{by}: the range {name!r} was marked more than once")
            if name in names:
                found[name] = (start, end, process)
        if not found:
            raise ValueError(f"the trace of {by} {NO_RANGES}")
        for name in names:
            if name not in found:
                raise ValueError(f"{by}: the range {name!r} is missing, of {len(names)}")
        work = {name: sorted(_work(export, tables, *found[name]), key=lambda one: one.start_ns) for name in names}
        has_kernels = KERNELS in tables and export.execute(f"SELECT 1 FROM {KERNELS} LIMIT 1").fetchone() is not None
    return Marked(by, work, {name: end - start for name, (start, end, _) in found.items()}, has_kernels)


def _ranges(export: sqlite3.Connection) -> Iterator[tuple[str, int, int, int]]:
    """Name, start, end and process of each range that ended on the thread that began it."""
    rows = export.execute(
        "SELECT COALESCE(value, text), start, end, globalTid, eventType FROM NVTX_EVENTS"
        " LEFT JOIN StringIds ON id = textId WHERE endGlobalTid IS NULL AND end IS NOT NULL"
    )
    for name, start, end, thread, event in rows:
        if event in STYLES:
            yield str(name), start, end, thread & PROCESS_MASK


def _work(export: sqlite3.Connection, tables: Collection[str], start: int, end: int, process: int) -> Iterator[Work]:
    """What the process's device work that began between these times is; ns."""
    within = (process, start, end)
    if KERNELS in tables:
        rows = export.execute(
            f"SELECT value, start, end FROM {KERNELS} JOIN StringIds ON id = demangledName"
            " WHERE globalPid = ? AND start >= ? AND start < ?",
            within,
        )
        yield from (Work(*row) for row in rows)
    for table, name in COPIES.items():
        if table in tables:
            rows = export.execute(
                f"SELECT start, end FROM {table} WHERE globalPid = ? AND start >= ? AND start < ?", within
            )
            yield from (Work(name, *row) for row in rows)
