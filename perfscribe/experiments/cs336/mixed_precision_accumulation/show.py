"""Table of mixed_precision_accumulation."""

from collections.abc import Mapping

from perfscribe.experiments.cs336.mixed_precision_accumulation.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NAMES = {
    "fp32": "fp32 += fp32",
    "fp16": "fp16 += fp16",
    "fp32_plus_fp16": "fp32 += fp16",
    "fp32_plus_upcast_fp16": "fp32 += fp32(fp16)",
}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table, one row per loop and device; the arithmetic is deterministic, so one run is enough."""
    name = "mixed_precision_accumulation"
    columns = [
        t.Column("accumulation", "Accumulation", lambda r: NAMES[r.factors["accumulation"]], kind="factor"),
        *t.factors(device="Device", terms="Terms", addend="Addend"),
        t.value("sum", "Sum", exact=True),
        t.value("relative_error", "Relative error"),
        t.value("ulp_at_sum", "ulp at the sum"),
        t.published(name, "cs336-writeup-004", "sum", "Write-up 004"),
        t.published(name, "cs336-writeup-002", "sum", "Write-up 002"),
        t.published(name, "brandon-snider", "sum", "brandon-snider"),
    ]
    note = "Deterministic arithmetic: one run, no spread. The exact sum is terms × addend in rational arithmetic."
    return [t.make(TABLES[0], "The four accumulation loops", records[name], columns, [note])]
