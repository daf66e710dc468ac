"""Makes exports of nsys by hand. synthetic.sqlite holds every case that counts; beside it lies what nsys printed."""

from __future__ import annotations

import csv
import io
import sqlite3
from pathlib import Path

from perfscribe.instruments.profiling.nvtx_kernels import COLUMNS

FOLDER = Path(__file__).parent / "fixtures" / "nsys"
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
    int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
    localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
    sharedMemoryLimitConfig INTEGER);
"""
GEMM = "ampere_sgemm_128x64_tn"
MUL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::MulFunctor<float>>(int, T2, T3)"
MACHINE = 1 << 48  # above the process number lie those of machine and hypervisor


def thread(process: int, number: int) -> int:
    """A thread as nsys numbers it."""
    return MACHINE | process << 24 | number


MAIN, AUTOGRAD = thread(4100, 4100), thread(4100, 4177)
OTHER = thread(4200, 4200)


class Export:
    """An export under construction. Times in ns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.strings: dict[str, int] = {}
        self.correlation = 0
        connection.executescript(SCHEMA)
        self.insert("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
        self.insert("ENUM_CUDA_MEMCPY_OPER", id=1, name="CUDA_MEMCPY_OPER_HTOD", label="Host-to-Device")

    def insert(self, table: str, **columns: object) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def mark(self, name: str, start: int, end: int | None, tid: int = MAIN, event: int = 59, **more: object) -> None:
        """A range; its text registered, as the nvtx package does, unless `text` is given in the row itself."""
        named = {} if "text" in more else {"textId": self.string(name)}
        row = {"domainId": 0, "color": 255, **named, **more}
        self.insert("NVTX_EVENTS", start=start, end=end, eventType=event, globalTid=tid, **row)

    def _launch(self, launch: int | None, tid: int, call: str) -> dict[str, object]:
        self.correlation += 1
        if launch is not None:
            self.insert(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                start=launch,
                end=launch + 5,
                eventClass=0,
                globalTid=tid,
                correlationId=self.correlation,
                nameId=self.string(call),
                returnValue=0,
            )
        return {
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
            "correlationId": self.correlation,
            "globalPid": tid & ~0xFFFFFF,
        }

    def kernel(self, name: str, launch: int | None, start: int, duration: int, tid: int = MAIN) -> None:
        sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory")
        zeros = dict.fromkeys((*sizes, "localMemoryPerThread", "localMemoryTotal", "gridId", "registersPerThread"), 0)
        names = {"demangledName": self.string(name), "shortName": self.string(name.split("<")[0])}
        columns = {**self._launch(launch, tid, "cudaLaunchKernel_v7000"), **zeros, **names}
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=start + duration, **columns)


def nsys_rows(text: str) -> list[tuple[str, ...]]:
    """The rows that nsys printed below its header, without the colon of the default domain; other domains' last.

    That is the order of versions that print the colon; 2023.4 sorts all names together.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    rows = rows[rows.index(list(COLUMNS)) + 1 :]  # nsys prints lines of its own above the header
    plain = [(row[0].removeprefix(":"), *row[1:]) for row in rows]
    return sorted(plain, key=lambda row: ":" in row[0])
