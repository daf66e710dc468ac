"""Table and figure of the roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.analytic.peaks import GB
from perfscribe.experiments.roofline import drawings, rows
from perfscribe.experiments.roofline.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NOT_KNOWN = "not known"
NOTE = (
    "Bound: the lower of peak rate and FLOP/byte times the memory's bandwidth, both measured where calibration ran, "
    "else the data sheet's; bytes are the least that has to move. Triton's kernels multiply fp32 as three TF32 "
    "products, so their peak is a third of TF32's."
)
CAPTION = (
    "Rate over FLOP a byte, both by formula and median time; a point is one pass of one cell. Lines: what peak rate "
    "and memory allow a dtype, measured, else by the data sheet."
)
DRAWN = {"peak": TERA, "memory": GB}


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a work and pass."""
    return [t.make(TABLES[0], "Rates against the roofline", rows.rows(records), _columns(), [NOTE])]


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


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """The roofline."""
    draw = partial(drawings.draw, rows=tables[TABLES[0]].ok)
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 4.2), sample="full_step_ms")]
