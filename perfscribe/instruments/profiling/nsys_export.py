"""Reads a SQLite export of Nsight Systems.

Tables and columns are those of versions 2023.4 to 2025.3 (NVIDIA's user guide, "SQLite Schema Reference"). A table
exists only if the report contains such events. Threads are 64-bit numbers whose low 24 bits are the thread, the next 24
the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from perfscribe.instruments.profiling.trace import (
    COPY,
    KERNEL,
    MEMSET,
    PUSH_POP,
    START_END,
    UNKNOWN_THREAD,
    Kernel,
    Range,
    Trace,
)

THREAD_MASK = (1 << 48) - 1  # the bits in trace.thread_key; above are the machine's and the hypervisor's numbers
PROCESS_MASK = ~((1 << 24) - 1)
STYLES = {59: PUSH_POP, 60: START_END, 70: PUSH_POP, 71: START_END}  # ENUM_NSYS_EVENT_TYPE; 70, 71: imported text files
DOMAIN_CREATED = 75
WARNING = 2  # ENUM_DIAGNOSTIC_SEVERITY_LEVEL


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an export for reading; raises ValueError (one line) if it cannot be read or is not an export of nsys."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            if not {"StringIds", "META_DATA_EXPORT"} <= table_names(connection):
                raise LookupError("its tables are missing")
            yield connection
    except (sqlite3.Error, LookupError) as error:
        raise ValueError(f"{path}: no SQLite export of nsys ({error})") from error


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the tables in an export."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def tool(connection: sqlite3.Connection) -> str:
    """Return the nsys that made the export ("nsys 2025.3.1")."""
    metadata = dict(connection.execute("SELECT name, value FROM META_DATA_EXPORT").fetchall())
    return "nsys " + ".".join(str(metadata.get("EXPORT_PRODUCT_VERSION", "of an unknown version")).split(".")[:3])


def read_sqlite(path: Path) -> Trace:
    """Read kernels, copies and memsets with their launches, and all NVTX ranges, of every process in the report.

    Kernels have demangled names. Ranges begun on one thread and ended on another are omitted, as in nsys's own
    summaries; a range that never ended lasts until the last range event.
    Raises ValueError (one line) for a file that cannot be read or is not an export of nsys.
    """
    with opened(path) as connection:
        return _Export(connection).trace()


class _Export:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.tool, self.tables = connection, tool(connection), table_names(connection)
        connection.row_factory = sqlite3.Row
        self.strings = {row["id"]: row["value"] for row in self._rows("StringIds")}
        self.backward = 0  # records omitted because they end before they start

    def trace(self) -> Trace:
        launches = self._launches()
        kernels = sorted(self._work(launches), key=lambda kernel: (kernel.start_ns, kernel.end_ns))
        ranges = sorted(self._ranges(), key=lambda time_range: (time_range.start_ns, -time_range.end_ns))
        absent = "" if kernels else f"{self.tool} recorded CUDA calls but no kernel" if launches else "no CUDA"
        return Trace(self.tool, kernels, ranges, absent, self._remarks(kernels))

    def _rows(self, table: str) -> Iterator[sqlite3.Row]:
        """Yield all rows of a table in the order written; none if the table is missing."""
        if table in self.tables:
            yield from self.connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid')

    def _events(self, table: str) -> Iterator[sqlite3.Row]:
        """Yield a table's rows that do not end before they start."""
        for row in self._rows(table):
            if None in (row["start"], row["end"]) or row["start"] > row["end"]:
                self.backward += 1
            else:
                yield row

    def _launches(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """Return start, end and thread of the CUDA calls that launched work, by process and correlation."""
        calls: dict[tuple[int, int], tuple[int, int, int]] = {}
        for row in self._events("CUPTI_ACTIVITY_KIND_RUNTIME"):
            thread, correlation = row["globalTid"], row["correlationId"]
            if thread is not None and correlation is not None:
                call = (row["start"], row["end"], thread & THREAD_MASK)
                calls.setdefault((thread & PROCESS_MASK, correlation), call)
        return calls

    def _work(self, launches: dict[Any, tuple[int, int, int]]) -> Iterator[Kernel]:
        for row, name, kind in self._named_work():
            unknown: tuple[int, int, int] = (row["start"], row["end"], UNKNOWN_THREAD)
            launch = launches.get((row["globalPid"], row["correlationId"]), unknown)
            yield Kernel(name, row["start"], row["end"], *launch, row["streamId"], row["deviceId"], kind)

    def _named_work(self) -> Iterator[tuple[sqlite3.Row, str, str]]:
        for row in self._events("CUPTI_ACTIVITY_KIND_KERNEL"):
            yield row, self.strings[row["demangledName"]], KERNEL
        labels = {row["id"]: row["label"] for row in self._rows("ENUM_CUDA_MEMCPY_OPER")}
        for row in self._events("CUPTI_ACTIVITY_KIND_MEMCPY"):
            label = labels.get(row["copyKind"], f"kind {row['copyKind']}")
            yield row, f"[CUDA memcpy {label}]", COPY
        for row in self._events("CUPTI_ACTIVITY_KIND_MEMSET"):
            yield row, "[CUDA memset]", MEMSET

    def _text(self, row: sqlite3.Row) -> str:
        return str(self.strings.get(row["textId"], row["text"] or ""))

    def _ranges(self) -> Iterator[Range]:
        events = list(self._rows("NVTX_EVENTS"))
        domains: dict[tuple[int, int], str] = {}
        for row in events:
            if row["eventType"] == DOMAIN_CREATED:
                domains.setdefault((row["globalTid"] & PROCESS_MASK, row["domainId"]), self._text(row))
        ranges = [row for row in events if row["eventType"] in STYLES]
        last = max((time for row in ranges for time in (row["start"], row["end"] or 0)), default=0)
        for row in ranges:
            if row["endGlobalTid"] is None:
                end, thread = last if row["end"] is None else row["end"], row["globalTid"]
                if end < row["start"]:
                    self.backward += 1
                    continue
                domain = domains.get((thread & PROCESS_MASK, row["domainId"]), "")
                yield Range(self._text(row), row["start"], end, thread & THREAD_MASK, STYLES[row["eventType"]], domain)

    def _remarks(self, kernels: list[Kernel]) -> list[str]:
        crossing = sum(row["endGlobalTid"] is not None for row in self._rows("NVTX_EVENTS"))
        graphs = sum(1 for _ in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))
        counts = {
            "kernels without a recorded launch": sum(kernel.launch_thread == UNKNOWN_THREAD for kernel in kernels),
            "records that end before they start left out": self.backward,
            "CUDA graphs traced as a whole, without their kernels": graphs,
            "ranges ended by another thread left out": crossing,
        }
        complaints = {row["text"] for row in self._rows("DIAGNOSTIC_EVENT") if row["severity"] >= WARNING}
        of_cuda = sorted(text for text in complaints if "CUDA" in text and "/" not in text)  # without paths
        return [f"{count} {what}" for what, count in counts.items() if count] + of_cuda
