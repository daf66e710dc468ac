"""Table and answer of mixed_precision_accumulation."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe import tables as t
from perfscribe.findings import Finding, find, need
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
        t.value("ulp_at_sum", "Step of the accumulator at the sum"),
        t.published(name, "sum", "cs336-writeup-004", "Write-up 004", known),
        t.published(name, "sum", "cs336-writeup-002", "Write-up 002", known),
        t.published(name, "sum", "brandon-snider", "brandon-snider", known),
    ]
    note = "Deterministic arithmetic: one run, no spread. The exact sum is terms × addend in rational arithmetic."
    return [t.make(TABLES[0], "The four accumulation loops", records[name], columns, [note])]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which rounding makes which error."""
    rows = tables[TABLES[0]].ok

    def compute() -> str:
        by_loop = need(rows, 4, "accumulation loops").drop_duplicates("accumulation").set_index("accumulation")
        sums = {name: float(by_loop.loc[label, "sum"]) for name, label in NAMES.items()}
        errors = {name: abs(float(by_loop.loc[label, "relative_error"])) for name, label in NAMES.items()}
        step = float(by_loop.loc[NAMES["fp16"], "ulp_at_sum"])
        same = sums["fp32_plus_fp16"] == sums["fp32_plus_upcast_fp16"]
        return (
            f"Adding in fp32 gives {sums['fp32']:.4f}, in fp16 {sums['fp16']:.4f}: near its end the fp16 accumulator "
            f"moves in steps of {step:.2g}, and most of each addend is rounded away (relative error "
            f"{errors['fp16']:.1e} against {errors['fp32']:.1e}). An fp32 accumulator with fp16 addends gives "
            f"{sums['fp32_plus_fp16']:.4f}: what is left is the rounding of the addend itself "
            f"({errors['fp32_plus_fp16']:.1e}), and casting it up before adding "
            f"{'changes nothing' if same else 'changes the sum'}. So the accumulator's precision matters first."
        )

    return [find("cs336.accumulation", TABLES, compute)]
