"""Table, figure and answer of the roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.ceilings import TERA
from perfscribe.counters.bandwidth_peaks import GB
from perfscribe.experiments.roofline import answers, drawings, rows
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.roofline",)
FIGURES = ("cs336.roofline",)
READS = ("attention",)
READS_IF_MEASURED = ("calibration", "end_to_end", "flash_benchmarking")
NOT_KNOWN = "not known"
NOTE = (
    "Bound: the lower of the peak rate and FLOP/byte times the memory's bandwidth. Both are measured, by calibration "
    "and by the product of flash_benchmarking, or the data sheet's where nothing was measured; ridge: the FLOP/byte "
    "from which on the peak is the lower one. Bytes by formula, the least that has to move; more than 100 %: operands "
    "were found in a cache."
)
STEP_NOTE = (
    "Of a training step: bytes of fp32 weights, gradients and AdamW's state, and what is saved for backward written "
    "and read once; FLOP by PaLM, appendix B."
)
ATTENTION_NOTE = (
    "Of attention, at the smallest and the largest head dimension d of cells without heads: bytes of operands and "
    "results once, and where N × N matrices are stored four passes over them forward and seven backward; FLOP forward "
    "4 N² d, backward 2.5 times that, halved if causal; where N × N matrices are stored all of both is computed, and "
    "backward is twice forward."
)
TRITON_NOTE = "Triton's kernels multiply fp32 as three TF32 products; their peak is a third of TF32's."
DRAWN = {"peak": TERA, "memory": GB}
CAPTION = (
    "Rate over FLOP a byte, both by formula, one panel a dtype. Lines: what peak rate and memory allow, measured "
    "(solid) and by the data sheet (dashed){triton}. Discs: {discs}; triangles: backward. Rates by median time."
)
TRITON_CAPTION = "; Triton's fp32 has a lower one of its own, a third of TF32's, which is not drawn"


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a work and pass."""
    found = rows.rows(records)
    works = {one.factors["work"] for one in found}
    of_work = {STEP_NOTE: rows.STEP in works, ATTENTION_NOTE: bool(works - {rows.STEP})}
    of_work[TRITON_NOTE] = any(rows.is_triton_fp32(one.factors) for one in found)
    notes = [NOTE, *(note for note, there in of_work.items() if there)]
    return [t.make(TABLES[0], "Rates against the roofline", found, _columns(), notes)]


def _tflop_per_s(record: Record) -> float:
    return float(record.values["flop"]) / t.summary(record, "time_ms").median * 1e3 / TERA


def _ceiling(name: str, unit: float) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = record.values[name]
        return NOT_KNOWN if found is None else found.per_s / unit

    return t.if_timed(get)


def _by(name: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = record.values[name]
        return NOT_KNOWN if found is None else f"{found.by}: {found.detail}"

    return t.if_timed(get)


def _of_bound(get: Callable[[Record, Any], Any]) -> Callable[[Record], Any]:
    def figure(record: Record) -> Any:
        found = record.values.get("bound")
        return NOT_KNOWN if found is None else get(record, found)

    return t.if_timed(figure)


def _share(record: Record, bound: Any) -> float:
    return 100 * _tflop_per_s(record) * TERA / float(bound.flop_per_s)


def _columns() -> list[t.Column]:
    titles = {"work": "Work", "name": "Model or implementation", "pass": "Pass", "seq_len": "Length", "batch": "Batch"}
    titles |= {"head_dim": "d", "dtype": "Dtype", "device": "Device"}
    return [
        *(t.factor(name, title) for name, title in titles.items()),
        t.derived("time_ms", "Time (ms)", lambda r: t.summary(r, "time_ms").median, spread="time_ms_iqr"),
        t.iqr("time_ms", "IQR (ms)"),
        t.count("time_ms"),
        t.derived("tflop", "FLOP (TFLOP)", t.if_timed(lambda r: r.values["flop"] / TERA)),
        t.derived("gb", "Bytes, least (GB)", t.if_timed(lambda r: r.values["bytes"] / GB)),
        t.derived("intensity", "FLOP/byte", t.if_timed(lambda r: r.values["flop"] / r.values["bytes"])),
        t.rate("tflop_per_s", "Rate (TFLOP/s)", _tflop_per_s, "time_ms"),
        t.derived("peak_tflop_per_s", "Peak (TFLOP/s)", _ceiling("peak", TERA)),
        t.derived("memory_gb_per_s", "Memory (GB/s)", _ceiling("memory", GB)),
        t.derived("ridge", "Ridge (FLOP/byte)", _of_bound(lambda r, bound: bound.ridge)),
        t.derived("bound_tflop_per_s", "Bound (TFLOP/s)", _of_bound(lambda r, bound: bound.flop_per_s / TERA)),
        t.derived("bound_by", "Bound by", _of_bound(lambda r, bound: bound.by), exact=True),
        t.rate("share_percent", "Share of the bound (%)", _of_bound(_share), "time_ms"),
        t.derived("peak_by", "Peak taken from", _by("peak"), exact=True),
        t.derived("memory_by", "Bandwidth taken from", _by("memory"), exact=True),
        t.timer("time_ms"),
        *(_drawn(f"{who}_{what}", unit) for who in ("measured", "sheet") for what, unit in DRAWN.items()),
    ]


def _drawn(name: str, unit: float) -> t.Column:
    """A ceiling that the figure draws, in the CSV alone."""
    ending = "tflop_per_s" if name.endswith("peak") else "gb_per_s"
    return t.Column(f"{name}_{ending}", name.replace("_", " "), _ceiling(name, unit), kind="unshown")


def _caption(ok: pd.DataFrame) -> str:
    """Of what the figure draws alone."""
    triton = any(rows.is_triton_fp32(row) for row in ok.to_dict("records"))
    works = set(ok["work"])
    discs = [
        name for name, there in {"forward passes": works - {rows.STEP}, "steps": rows.STEP in works}.items() if there
    ]
    return CAPTION.format(triton=TRITON_CAPTION if triton else "", discs=" and ".join(discs) or "forward passes")


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """The roofline."""
    rows_ok = tables[TABLES[0]].ok
    height = drawings.PANEL_IN * max(1, len(drawings.dtypes(rows_ok)))
    draw = partial(drawings.draw, rows=rows_ok)
    return [f.Figure(FIGURES[0], _caption(rows_ok), draw, (drawings.WIDTH_IN, height), sample="full_step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which ceiling bounds what, and how near it comes."""
    return [find("cs336.roofline", TABLES, lambda: answers.bounds(tables[TABLES[0]].ok))]
