"""Makes a small SQLite export without anything private: python -m perfscribe.instruments.profiling.slim EXPORT OUTPUT

A full export holds every environment variable, all processes and the host's name. What is left here is what a trace is
read from: ranges, kernels, copies and memsets with the calls that launched them, and the names of these.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

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
    partial = output.with_name(f".{output.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(partial)) as connection:
            connection.execute("ATTACH ? AS full", (str(export),))
            _copy(connection)
            connection.commit()
            connection.execute("DETACH full")
            connection.execute("VACUUM")
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _copy(connection: sqlite3.Connection) -> None:
    made = dict(connection.execute("SELECT name, sql FROM full.sqlite_master WHERE type = 'table'"))
    launched = " UNION ".join(f"SELECT correlationId FROM main.{table}" for table in WORK if table in made)
    rows = {**dict.fromkeys(WHOLE, "1"), "META_DATA_EXPORT": VERSIONS}
    if launched:
        rows[CALLS] = f"correlationId IN ({launched})"
    kept = [table for table in rows if table in made]
    for table in kept:  # the calls come last: they are chosen by the work that is there already
        connection.execute(made[table])
        connection.execute(
            f'INSERT INTO main."{table}" SELECT * FROM full."{table}" WHERE {rows[table]} ORDER BY rowid'
        )
    used = " UNION ".join(
        f'SELECT "{column}" FROM main."{table}"'
        for table in kept
        for column in NAMES
        if column in _columns(connection, table)
    )
    connection.execute(made["StringIds"])
    connection.execute(f"INSERT INTO main.StringIds SELECT * FROM full.StringIds WHERE id IN ({used or 'NULL'})")


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f'PRAGMA main.table_info("{table}")')}


def main() -> int:
    """Exit status 0, or 1 after one line that says what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    try:
        slim(arguments.export, arguments.output)
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"slim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
