"""Writes tests/fixtures/nsys/synthetic.sqlite: an export with the schema of nsys 2023.4 and every case that counts.

python tests/nsys_fixture.py; then `nsys stats -r nvtx_kern_sum -f csv` of it makes synthetic.csv. Beside it lies an
export from a GPU, with the tables alone that a trace is read from.
"""

from __future__ import annotations

import csv
import io
import sqlite3
import sys
from contextlib import closing
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
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER,
    srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,
    graphNodeId INTEGER, virtualAddress INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
"""
GEMM = "ampere_sgemm_128x64_tn"
MUL = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::MulFunctor<float>>(int, T2, T3)"
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, (int)7, (bool)0, (bool)0>(T2 *, const T1 *)"
MACHINE = 1 << 48  # above the process number lie those of machine and hypervisor


def thread(process: int, number: int) -> int:
    """A thread as nsys numbers it."""
    return MACHINE | process << 24 | number


MAIN, AUTOGRAD = thread(4100, 4100), thread(4100, 4177)
OTHER = thread(4200, 4200)


class Export:
    """An export under construction. Times in ns."""

    def __init__(self, connection: sqlite3.Connection, version: str = "2023.4.4.54") -> None:
        self.connection = connection
        self.strings: dict[str, int] = {}
        self.correlation = 0
        connection.executescript(SCHEMA)
        self.insert("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=version)
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

    def copy(self, launch: int, start: int, duration: int) -> None:
        columns = {**self._launch(launch, MAIN, "cudaMemcpyAsync_v3020"), "bytes": 4096, "copyKind": 1}
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + duration, **columns)

    def memset(self, launch: int, start: int, duration: int) -> None:
        columns = {**self._launch(launch, MAIN, "cudaMemsetAsync_v3020"), "bytes": 4096, "value": 0}
        self.insert("CUPTI_ACTIVITY_KIND_MEMSET", start=start, end=start + duration, **columns)


def fill(export: Export) -> None:
    """Two processes, nested ranges, autograd's thread, and what nsys treats in its own way."""
    export.mark("warm-up", 100, 900)
    export.kernel(GEMM, 200, 300, 999)
    for step, begin in enumerate((1000, 3000)):
        export.mark("step", begin, begin + 1900)
        export.mark("forward", begin + 10, begin + 700)
        export.mark("attention scores", begin + 20, begin + 200)
        export.kernel(GEMM, begin + 30, begin + 60, 101 + step)
        export.kernel(GEMM, begin + 40, begin + 200, 104)
        export.mark("softmax", begin + 210, begin + 300)
        export.kernel(SOFTMAX, begin + 220, begin + 310, 50 + 3 * step)
        export.kernel(MUL, begin + 400, begin + 420, 7)
        export.kernel(MUL, begin + 410, begin + 430, 8)
        export.mark("backward", begin + 710, begin + 1500)
        for part in range(4):  # quarters in the averages
            export.kernel(GEMM, begin + 800 + 20 * part, begin + 900 + 40 * part, 30 + part * part, AUTOGRAD)
        export.mark("optimizer", begin + 1510, begin + 1890)
        export.copy(begin + 1520, begin + 1540, 12)
        export.memset(begin + 1530, begin + 1560, 3)
        export.kernel(MUL, begin + 1600, begin + 1950, 21)
    # on the edge of a range, astride of it, outside of all, without a launch
    export.mark("edge", 5000, 5005, text="edge")
    export.kernel(MUL, 5000, 5010, 1)
    export.mark("astride", 5100, 5104)
    export.kernel(MUL, 5100, 5110, 2)
    export.kernel(MUL, 6000, 6010, 4)
    export.kernel(GEMM, None, 6100, 40)
    # a range within one of the same name; a library's domain; start and end; never ended; ended by another thread
    export.mark("again", 7000, 7900)
    export.mark("again", 7100, 7200)
    export.kernel(MUL, 7150, 7160, 5)
    export.kernel(MUL, 7300, 7310, 6)
    export.mark("NCCL", 1, None, event=75, domainId=3, text="NCCL")
    export.mark("ncclAllReduce", 8000, 8100, domainId=3)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", 8010, 8020, 77)
    export.mark("open", 8200, 8300, event=60, rangeId=1)
    export.kernel(MUL, 8250, 8260, 9)
    export.mark("handed over", 8400, 8500, event=60, rangeId=2, endGlobalTid=AUTOGRAD)
    export.kernel(MUL, 8450, 8460, 10)
    export.mark("never ended", 9000, None)
    export.kernel(MUL, 9100, 9110, 11)
    # another process at the same time
    export.mark("step", 1000, 9900, OTHER)
    export.kernel(GEMM, 2000, 2010, 500, OTHER)
    export.mark("a mark", 9950, None, event=34)


def write(path: Path) -> Path:
    """Write the export, replacing one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        fill(Export(connection))
        connection.commit()
    return path


def nsys_rows(text: str) -> list[tuple[str, ...]]:
    """The rows that nsys printed below its header, without the colon of the default domain; other domains' last.

    That is the order of versions that print the colon; 2023.4 sorts all names together.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    rows = rows[rows.index(list(COLUMNS)) + 1 :]  # nsys prints lines of its own above the header
    plain = [(row[0].removeprefix(":"), *row[1:]) for row in rows]
    return sorted(plain, key=lambda row: ":" in row[0])


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "synthetic.sqlite"))
