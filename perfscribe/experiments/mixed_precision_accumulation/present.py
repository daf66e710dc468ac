"""Table and answer of mixed_precision_accumulation."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, find, one_setting
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.mixed_precision_accumulation",)
FIGURES = ()
NAMES = {
    "fp32": "fp32 += fp32",
    "fp16": "fp16 += fp16",
    "fp32_plus_fp16": "fp32 += fp16",
    "fp32_plus_upcast_fp16": "fp32 += fp32(fp16)",
}


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """One row a loop and device; a sum of rounded numbers is exact, so one run says all."""
    name = "mixed_precision_accumulation"
    known = ("accumulation", "terms", "addend")
    columns = [
        t.Column("accumulation", "Accumulation", lambda r: NAMES[r.factors["accumulation"]], kind="factor"),
        t.factor("device", "Device"),
        t.factor("terms", "Terms"),
        t.factor("addend", "Addend"),
        t.value("sum", "Sum", exact=True),
        t.value("relative_error", "Relative error"),
        t.value("rounded_addend", "Addend as stored", exact=True),
        t.value("last_increment", "Added by the last addition", exact=True),
        t.value("ulp_at_sum", "ulp at the sum"),
        t.published(name, "sum", "cs336-writeup-004", "Write-up 004", known),
        t.published(name, "sum", "cs336-writeup-002", "Write-up 002", known),
        t.published(name, "sum", "brandon-snider", "brandon-snider", known),
    ]
    note = "Deterministic arithmetic: one run, no spread. The exact sum is terms × addend in rational arithmetic."
    return [t.make(TABLES[0], "The four accumulation loops", records[name], columns, [note])]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which rounding makes which error."""
    rows = tables[TABLES[0]].ok

    return [find("cs336.accumulation", TABLES, lambda: _in_words(rows))]


def _in_words(rows: pd.DataFrame) -> str:
    by_loop, setting = one_setting(rows, ("device", "terms", "addend"))
    by_loop = by_loop.set_index("accumulation")
    lacking = [label for label in NAMES.values() if label not in by_loop.index]
    if lacking:
        raise CannotTell(f"{', '.join(lacking)} was not measured with {setting}")
    texts = [label for label in NAMES.values() if isinstance(by_loop.loc[label, "sum"], str)]
    if texts:
        raise CannotTell(f"the sum of {', '.join(texts)} is {by_loop.loc[texts[0], 'sum']} with {setting}")

    def of(loop: str, column: str) -> float:
        return float(by_loop.loc[NAMES[loop], column])

    lost = 1 - of("fp16", "last_increment") / of("fp16", "rounded_addend")
    same = of("fp32_plus_fp16", "sum") == of("fp32_plus_upcast_fp16", "sum")
    errors = {loop: abs(of(loop, "relative_error")) for loop in NAMES}
    worse = errors["fp16"] > errors["fp32_plus_fp16"]
    return (
        f"With {setting}: adding in fp32 gives {of('fp32', 'sum'):.4f} (relative error {errors['fp32']:.1e}), in fp16 "
        f"{of('fp16', 'sum'):.4f} ({errors['fp16']:.1e}): at its end the fp16 accumulator moves in steps of "
        f"{of('fp16', 'ulp_at_sum'):.2g}, and rounding takes {lost:.0%} of the last addend. An fp32 accumulator with "
        f"fp16 addends gives {of('fp32_plus_fp16', 'sum'):.4f} ({errors['fp32_plus_fp16']:.1e}), with addends cast "
        f"up first {'the same' if same else 'another'} sum. The accumulator's precision costs "
        f"{'more' if worse else 'less'} here than the addend's."
    )
