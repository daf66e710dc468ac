"""Reading SQLite exports of nsys: what is found, what may be absent, what is refused."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfscribe.instruments.profiling.nsys_export import read_sqlite

SYNTHETIC = Path(__file__).parents[1] / "fixtures" / "nsys" / "synthetic.sqlite"  # every case that counts
CUDA_TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")]


def export(path: Path, *statements: str) -> Path:
    """The committed export, with these changes."""
    shutil.copyfile(SYNTHETIC, path)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_a_later_schema_reads_the_same(tmp_path: Path) -> None:
    later = export(
        tmp_path / "later #x?.sqlite",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN greenContextId INTEGER",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT 1 AS start",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (3, 'CUDA events were lost'), (1, 'CUDA is here'), (3, 'CUDA in /home/x')",
        "UPDATE META_DATA_EXPORT SET value = '2025.3.1.90' WHERE name = 'EXPORT_PRODUCT_VERSION'",
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
    bare = read_sqlite(export(tmp_path / "bare.sqlite", *drops, "DROP TABLE NVTX_EVENTS"))
    assert not bare.kernels and not bare.ranges


def test_correlations_count_within_a_process(tmp_path: Path) -> None:
    """Another process counts from one, too."""
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
    again = [f"UPDATE {table} SET correlationId = 1 WHERE correlationId = 36" for table in tables]
    assert read_sqlite(export(tmp_path / "two.sqlite", *again)).kernels == read_sqlite(SYNTHETIC).kernels


def test_an_export_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    missing = export(tmp_path / "columns.sqlite", "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId")
    with pytest.raises(ValueError, match=r"no SQLite export of nsys"):
        read_sqlite(missing)
