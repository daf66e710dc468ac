"""Committed exports of nsys, beside each what nsys printed; synthetic.sqlite holds every case that counts."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from perfscribe.instruments.profiling.nvtx_kernels import COLUMNS

FOLDER = Path(__file__).parent / "fixtures" / "nsys"
GEMM = "ampere_sgemm_128x64_tn"


def nsys_rows(text: str) -> list[tuple[str, ...]]:
    """The rows that nsys printed below its header, without the colon of the default domain; other domains' last.

    That is the order of versions that print the colon; 2023.4 sorts all names together.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    rows = rows[rows.index(list(COLUMNS)) + 1 :]  # nsys prints lines of its own above the header
    plain = [(row[0].removeprefix(":"), *row[1:]) for row in rows]
    return sorted(plain, key=lambda row: ":" in row[0])
