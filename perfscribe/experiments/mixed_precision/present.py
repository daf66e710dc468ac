"""Tables, figure and answers of benchmarking_mixed_precision's timings, from the records of end_to_end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.mixed_precision import answers, drawings, pairs
from perfscribe.experiments.nsys_profile import busy
from perfscribe.findings import Finding, find
from perfscribe.precision import DTYPES
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.mixed_precision", "cs336.mixed_precision_passes", "cs336.mixed_precision_speedup")
FIGURES = ("cs336.mixed_precision_speedup",)
READS = ("end_to_end",)
READS_IF_MEASURED = ("nsys_profile",)  # for the kernels' time of the same passes
FIGURES_SHOW = READS

SOURCES = {
    "cs336-writeup-002": "002",
    "cs336-writeup-004": "004",
    "brandon-snider": "brandon-snider",
    "damek": "damek",
}
DTYPE_NOTE = (
    "fp32: true fp32, TF32 off; tf32: fp32 with TF32 matrix products; bf16, fp16: autocast with fp32 parameters. Host "
    "clock, the device synchronised. Forward keeps its graph and ends with the loss; forward+backward is timed as one."
)
SPEEDUP_NOTE = (
    "Speed-up: median time in true fp32 over the median time in the other dtype, so that above 1 the other dtype takes "
    "less time. The cells were measured one after the other, not in turns, so no interval is claimed."
)
PUBLISHED_NOTE = (
    "002: hardware, context and whether TF32 was on are not stated. 004: one H200, a model of its own with a batch of "
    "32 and a vocabulary of 50,000, context not stated; N/A is its word for any failure. brandon-snider: H100, true "
    "fp32 here. damek: GPU not stated. A figure stands in every row that differs in nothing that its source states."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Every cell with its speed-up; then the two shapes in which write-ups give them, at one context."""
    cells = records["end_to_end"]
    context = pairs.fullest_context(cells)
    at = f", context {context}" if context else ""
    passes, sizes = pairs.single_passes(cells, context), pairs.side_by_side(cells, context)
    return [
        t.make(TABLES[0], "Precision and speed", cells, _cell_columns(cells), [DTYPE_NOTE, SPEEDUP_NOTE]),
        t.make(
            TABLES[1],
            f"Passes by precision, beside write-ups{at}",
            passes,
            _pass_columns(),
            [DTYPE_NOTE, PUBLISHED_NOTE],
        ),
        t.make(
            TABLES[2],
            f"Precisions side by side{at}",
            sizes,
            _speedup_columns(records.get("nsys_profile", [])),
            [DTYPE_NOTE, SPEEDUP_NOTE, PUBLISHED_NOTE],
        ),
    ]


def _cell_columns(cells: list[Record]) -> list[t.Column]:
    partners = pairs.by_setting(cells)
    columns = [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
    ]
    for name, sample in pairs.PASSES.items():
        title, key = name.capitalize(), sample.removesuffix("_ms")
        columns += [
            t.median(sample, f"{title} (ms)"),
            t.iqr(sample, "IQR (ms)"),
            pairs.speedup_column(f"{key}_speedup", f"{title}, speed-up over fp32 (×)", sample, partners),
        ]
    return [*columns, t.count("forward_ms"), t.timer("forward_ms")]


def _level(name: str, factor: str) -> t.Column:
    """A factor under the name that write-ups give it."""
    return t.Column(name, name, lambda record: record.factors[factor], kind="factor", exact=True)


def _pass_columns() -> list[t.Column]:
    return [
        _level("model_size", "size"),
        _level("precision", "dtype"),
        _level("pass_type", "pass_type"),
        t.derived("avg_time_ms", "avg_time_ms", lambda r: t.summary(r, pairs.ONE_PASS).mean, spread="pass_ms_std"),
        t.std(pairs.ONE_PASS, "Std (ms)"),
        t.median(pairs.ONE_PASS, "Median (ms)", name="median_ms"),
        t.count(pairs.ONE_PASS),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("device", "Device"),
        *(_published_pass(source, name) for source, name in SOURCES.items()),
    ]


def _published_pass(source: str, name: str) -> t.Column:
    def get(record: Record) -> Any:
        found = pairs.published_ms(source, record.factors, pairs.PASSES[record.factors["pass_type"]])
        if found is None:
            return "none"
        return found.shown

    return t.Column(f"ms_{source}", f"{name} (ms)", get, kind="published", exact=True)


def _speedup_columns(traced: list[Record]) -> list[t.Column]:
    return [
        _level("model_size", "size"),
        _level("pass_type", "pass_type"),
        *(_with_spread(f"{dtype}_ms", f"{dtype.upper()} (ms)") for dtype in DTYPES),
        *(_with_spread(f"{dtype}_speedup", f"{dtype.upper()} speed-up (×)") for dtype in pairs.OTHERS),
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
    """Share of a pass in a dtype in which kernels run, by nsys_profile's trace of the same pass."""
    by_pass = {name: busy.device_ms(traced, name.split("+")) for name in pairs.PASSES}

    def get(record: Record) -> Any:
        time_ms = record.values[f"{dtype}_ms"]
        if isinstance(time_ms, str):
            return time_ms
        levels = {**record.factors, "dtype": dtype}
        return busy.busy_percent(levels, time_ms, by_pass[record.factors["pass_type"]])

    return get


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
        found = pairs.published_speedup(source, record.factors, dtype, pairs.PASSES[record.factors["pass_type"]])
        return "none" if found is None else round(found, 2)

    return t.Column(f"{dtype}_speedup_{source}", title, get, kind="published", exact=True)


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The timings, how they go with size, what TF32 does to them, and how far published ones agree."""
    rows = tables[TABLES[2]].ok
    names = TABLES[2:]
    return [
        find("cs336.mixed_precision_timings", names, lambda: answers.timings(rows)),
        find("cs336.mixed_precision_trend", names, lambda: answers.trend(rows)),
        find("cs336.mixed_precision_tf32", names, lambda: answers.tf32(rows)),
        find("cs336.mixed_precision_published", names, lambda: answers.published(rows)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed-up over fp32 by size."""
    table = tables[TABLES[2]]
    caption = (
        "Speed-up over true fp32 by model size, forward (left) and backward (right), one line a precision, at the "
        "context of the table: ratios of medians, host clock. Cells were not measured in turns, so the ratios have no "
        "interval."
    )
    return [f.Figure(FIGURES[0], caption, lambda canvas: drawings.by_size(canvas, table.frame), sample="forward_ms")]
