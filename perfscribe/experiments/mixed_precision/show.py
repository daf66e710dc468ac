"""Tables and figure of benchmarking_mixed_precision's timings, from the records of end_to_end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfscribe.experiments.mixed_precision import drawings, rows
from perfscribe.experiments.mixed_precision.levels import SHOWN
from perfscribe.instruments.precision import DTYPES
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures

SOURCES = {
    "cs336-writeup-002": "002",
    "cs336-writeup-004": "004",
    "brandon-snider": "brandon-snider",
    "damek": "damek",
}
PASSES_NOTE = (
    "fp32: true fp32, TF32 off; tf32: fp32 with TF32 matrix products; bf16, fp16: autocast with fp32 parameters. A "
    "published figure stands in every row that differs in nothing that its source states."
)
SPEEDUP_NOTE = (
    "Speed-up: median time in true fp32 over the median time in the other dtype. The cells were measured one after the "
    "other, not interleaved."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The two shapes in which write-ups give precisions, at one context."""
    cells = records["end_to_end"]
    context = rows.fullest_context(cells)
    at = f", context {context}" if context else ""
    passes, sizes = rows.single_passes(cells, context), rows.side_by_side(cells, context)
    speedups = _speedup_columns(records.get("nsys_profile", []))
    return [
        t.make(TABLES[0], f"Passes by precision, beside write-ups{at}", passes, _pass_columns(), [PASSES_NOTE]),
        t.make(TABLES[1], f"Precisions side by side{at}", sizes, speedups, [SPEEDUP_NOTE]),
    ]


def _level(name: str, factor: str) -> t.Column:
    """A factor under the name that write-ups give it."""
    return t.Column(name, name, lambda record: record.factors[factor], kind="factor", exact=True)


def _pass_columns() -> list[t.Column]:
    return [
        _level("model_size", "size"),
        _level("precision", "dtype"),
        _level("pass_type", "pass_type"),
        t.derived("avg_time_ms", "avg_time_ms", lambda r: t.summary(r, rows.ONE_PASS).mean, spread="pass_ms_std"),
        t.std(rows.ONE_PASS, "Std (ms)"),
        t.median(rows.ONE_PASS, "Median (ms)", name="median_ms"),
        t.count(rows.ONE_PASS),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("device", "Device"),
        *(_published_pass(source, name) for source, name in SOURCES.items()),
    ]


def _published_pass(source: str, name: str) -> t.Column:
    def get(record: Record) -> Any:
        found = rows.published_ms(source, record.factors, rows.PASSES[record.factors["pass_type"]])
        if found is None:
            return "none"
        return found.shown

    return t.Column(f"ms_{source}", f"{name} (ms)", get, kind="published", exact=True)


def _speedup_columns(traced: list[Record]) -> list[t.Column]:
    return [
        _level("model_size", "size"),
        _level("pass_type", "pass_type"),
        *(_with_spread(f"{dtype}_ms", f"{dtype.upper()} (ms)") for dtype in DTYPES),
        *(_with_spread(f"{dtype}_speedup", f"{dtype.upper()} speed-up (×)") for dtype in rows.OTHERS),
        *(
            _published_speedup(dtype, source, f"{dtype.upper()}, {name} (×)")
            for dtype in ("bf16", "fp16")
            for source, name in SOURCES.items()
            if (dtype, source) in PUBLISHED_SPEEDUPS
        ),
        t.value("n", "n", exact=True),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("device", "Device"),
        *(
            t.Column(f"{dtype}_busy_percent", f"{dtype.upper()}, device busy (%)", _busy(traced, dtype), kind="unshown")
            for dtype in ("tf32", "bf16")
        ),
    ]


def _busy(traced: list[Record], dtype: str) -> Callable[[Record], Any]:
    return lambda record: rows.busy_percent(traced, record, dtype)


def _with_spread(name: str, title: str) -> t.Column:
    """A value rounded by its spread."""
    spread = f"{name}_spread"
    get_spread = lambda record: record.values.get(spread, t.ONE_SAMPLE)  # noqa: E731
    return t.Column(name, title, lambda record: record.values[name], spread=spread, spread_get=get_spread)


# What the sources give in fp32 too.
PUBLISHED_SPEEDUPS = {
    ("bf16", "cs336-writeup-002"),
    ("bf16", "cs336-writeup-004"),
    ("bf16", "brandon-snider"),
    ("fp16", "cs336-writeup-004"),
}


def _published_speedup(dtype: str, source: str, title: str) -> t.Column:
    def get(record: Record) -> Any:
        found = rows.published_speedup(source, record.factors, dtype, rows.PASSES[record.factors["pass_type"]])
        return "none" if found is None else round(found, 2)

    return t.Column(f"{dtype}_speedup_{source}", title, get, kind="published", exact=True)


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed-up over fp32 by size."""
    table = tables[TABLES[1]]
    caption = (
        "Speed-up over true fp32 by model size, forward and backward, one line a precision: ratios of medians, host "
        "clock. Cells were not interleaved, so the ratios have no interval."
    )
    return [f.Figure(FIGURES[0], caption, lambda canvas: drawings.by_size(canvas, table.frame), sample="forward_ms")]
