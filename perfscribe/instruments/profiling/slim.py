"""Makes a small SQLite export without anything private: python -m perfscribe.instruments.profiling.slim EXPORT OUTPUT

A full export holds every environment variable, all processes and the host's name. What is left here is what a trace is
read from: ranges, kernels, copies and memsets with the calls that launched them, and the names of these.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from perfscribe.base.atomic import replacing
from perfscribe.instruments.profiling.nsys_export import read_sqlite

WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WHOLE = (*WORK, "NVTX_EVENTS", "ENUM_CUDA_MEMCPY_OPER", "ENUM_NSYS_EVENT_TYPE")
VERSIONS = "name LIKE 'EXPORT_PRODUCT_%' OR name LIKE 'EXPORT_SCHEMA_%'"
# Columns that hold numbers of strings.
NAMES = ("demangledName", "shortName", "mangledName", "textId", "nameId", "jsonTextId")


def slim(export: Path, output: Path) -> None:
    """Write the small export; it is whole or not there. ValueError where `export` is none of nsys's."""
    read_sqlite(export)
    with replacing(output) as temporary, closing(sqlite3.connect(temporary)) as connection:
        connection.execute("ATTACH ? AS full", (str(export),))
        _copy(connection)
        connection.commit()
        connection.execute("DETACH full")
        connection.execute("VACUUM")


def _copy(connection: sqlite3.Connection) -> None:
    made = dict(connection.execute("SELECT name, sql FROM full.sqlite_master WHERE type = 'table'"))
    launched = " UNION ".join(f"SELECT correlationId FROM main.{table}" for table in WORK if table in made)
    rows = {**dict.fromkeys(WHOLE, "1"), "META_DATA_EXPORT": VERSIONS}
    if launched:
        rows[CALLS] = f"correlationId IN ({launched})"
    kept = [table for table in rows if table in made]
    used = []
    for table in kept:  # the calls come last: they are chosen by the work that is there already
        connection.execute(made[table])
        connection.execute(
            f'INSERT INTO main."{table}" SELECT * FROM full."{table}" WHERE {rows[table]} ORDER BY rowid'
        )
        columns = {row[1] for row in connection.execute(f'PRAGMA main.table_info("{table}")')}
        used += [f'SELECT "{column}" FROM main."{table}"' for column in NAMES if column in columns]
    connection.execute(made["StringIds"])
    ids = " UNION ".join(used) or "NULL"
    connection.execute(f"INSERT INTO main.StringIds SELECT * FROM full.StringIds WHERE id IN ({ids})")


if __name__ == "__main__":
    try:
        slim(Path(sys.argv[1]), Path(sys.argv[2]))
    except (IndexError, ValueError, OSError, sqlite3.Error) as problem:
        sys.exit(f"slim EXPORT OUTPUT: {problem}")
