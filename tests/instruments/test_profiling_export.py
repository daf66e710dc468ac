"""Reading SQLite exports of nsys: what is found, what may be absent, what is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from nsys_fixture import AUTOGRAD, FOLDER, GEMM, MAIN, MUL, Export, fill, write

from perfscribe.instruments.profiling.nsys_export import read_sqlite
from perfscribe.instruments.profiling.trace import COPY, KERNEL, MEMSET, UNKNOWN_THREAD, process_and_thread, thread_key

SYNTHETIC = FOLDER / "synthetic.sqlite"
CUDA_TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")]


def export(path: Path, *statements: str, version: str = "2023.4.4.54", filled: bool = True) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        made = Export(connection, version)
        if filled:
            fill(made)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_kernels_have_the_calls_that_launched_them(tmp_path: Path) -> None:
    trace = read_sqlite(SYNTHETIC)
    assert read_sqlite(write(tmp_path / "again.sqlite")) == trace and len(trace.kernels) == 36
    first = trace.kernels[0]
    assert (first.name, first.start_ns, first.duration_ns, first.kind) == (GEMM, 300, 999, KERNEL)
    assert (first.launch_start_ns, first.launch_end_ns, first.launch_thread) == (200, 205, thread_key(4100, 4100))
    assert (first.stream, first.device) == (7, 0)
    assert {process_and_thread(kernel.launch_thread)[0] for kernel in trace.kernels} == {0, 4100, 4200}
    (unlaunched,) = [kernel for kernel in trace.kernels if kernel.launch_thread == UNKNOWN_THREAD]
    assert unlaunched.launch_start_ns == unlaunched.start_ns == 6100 and unlaunched.launch_end_ns == unlaunched.end_ns
    assert trace.remarks[:2] == ["1 kernels without a recorded launch", "1 ranges ended by another thread left out"]
    work = [(one.name, one.kind, one.duration_ns) for one in trace.kernels if one.kind != KERNEL]
    assert work == [("[CUDA memcpy Host-to-Device]", COPY, 12), ("[CUDA memset]", MEMSET, 3)] * 2


def test_ranges_of_every_kind() -> None:
    ranges = {one.name: one for one in read_sqlite(SYNTHETIC).ranges}
    assert ranges["edge"].duration_ns == 5  # its text stands in the row itself
    assert ranges["open"].style == "StartEnd" and ranges["forward"].style == "PushPop"
    assert ranges["ncclAllReduce"].domain == "NCCL" and ranges["forward"].domain == ""
    assert ranges["never ended"].end_ns == 9900  # the last range event
    assert "handed over" not in ranges and "a mark" not in ranges
    assert ranges["forward"].thread == thread_key(4100, 4100)


def test_a_later_schema_reads_the_same(tmp_path: Path) -> None:
    later = export(
        tmp_path / "later.sqlite",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN greenContextId INTEGER",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT 1 AS start",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (3, 'CUDA events were lost'), (1, 'CUDA is here'), (3, 'CUDA in /home/x')",
        version="2025.3.1.90",
    )
    found, known = read_sqlite(later), read_sqlite(SYNTHETIC)
    assert (found.tool, known.tool) == ("nsys 2025.3.1", "nsys 2023.4.4")
    assert found.kernels == known.kernels and found.ranges == known.ranges
    # no information, no path of the machine
    assert set(found.remarks) - set(known.remarks) == {
        "1 CUDA graphs traced as a whole, without their kernels",
        "CUDA events were lost",
    }


def test_tables_may_be_absent(tmp_path: Path) -> None:
    drops = [f"DROP TABLE {table}" for table in CUDA_TABLES]
    host = read_sqlite(export(tmp_path / "host.sqlite", *drops))
    assert not host.kernels and host.no_kernels == "no CUDA" and len(host.ranges) == 21
    calls = read_sqlite(export(tmp_path / "calls.sqlite", *drops[:3]))
    assert calls.no_kernels == "nsys 2023.4.4 recorded CUDA calls but no kernel"
    bare = read_sqlite(export(tmp_path / "bare.sqlite", *drops, "DROP TABLE NVTX_EVENTS", filled=False))
    assert not bare.kernels and not bare.ranges


def test_correlations_count_within_a_process(tmp_path: Path) -> None:
    path = tmp_path / "two.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        made = Export(connection)
        made.kernel(GEMM, 10, 20, 5, MAIN)
        made.correlation = 0  # another process counts from one, too
        made.kernel(MUL, 30, 40, 5, AUTOGRAD + (100 << 24))
        connection.commit()
    launches = {kernel.name: (kernel.launch_start_ns, kernel.launch_thread) for kernel in read_sqlite(path).kernels}
    assert launches == {GEMM: (10, thread_key(4100, 4100)), MUL: (30, thread_key(4200, 4177))}


@pytest.mark.parametrize("content", [None, b"", b"text that is no database"])
def test_what_is_no_export_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "odd #x?.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd #x\?\.sqlite: no SQLite export of nsys \("):
        read_sqlite(path)
    missing = export(tmp_path / "columns.sqlite", "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId")
    with pytest.raises(ValueError, match=r"no SQLite export of nsys"):
        read_sqlite(missing)
