"""Tables, figures and answers of benchmarking_script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.ceilings import TERA, peak_notes, share_of_product
from perfscribe.experiments.end_to_end import answers, predictions
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import GIB, Table

TABLES = (
    "cs336.benchmarking_script",
    "cs336.benchmarking_rates",
    "cs336.benchmarking_memory",
    "cs336.benchmarking_published",
)
FIGURES = ("cs336.benchmarking_times",)
READS = ("calibration", "flash_benchmarking")  # for the ceilings
TIMER_NOTE = (
    "Host clock, the device synchronised before and after each phase. Forward keeps its graph and ends with the loss; "
    "backward by difference is forward and backward timed as one minus forward, as a write-up does it."
)


def _factors(*more: t.Column) -> list[t.Column]:
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        *more,
    ]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Times as asked; rates; memory beside its prediction; published figures beside ours."""
    cells = records["end_to_end"]
    rates = [*_rate_columns(), share_of_product(records, lambda r: predictions.tflop_per_s(r) * TERA, "full_step_ms")]
    rate_notes = [*predictions.RATE_NOTES, *peak_notes(cells)]
    return [
        t.make(TABLES[0], "Forward, backward and AdamW step", cells, _time_columns(), [TIMER_NOTE]),
        t.make(TABLES[1], "Tokens a second and model FLOP utilisation", cells, rates, rate_notes),
        t.make(
            TABLES[2], "Parameters and peak memory, predicted and measured", cells, _memory_columns(), [MEMORY_NOTE]
        ),
        t.make(TABLES[3], "Beside published figures", cells, _published_columns(), [PUBLISHED_NOTE]),
    ]


MEMORY_NOTE = (
    "Measured: peak of torch's allocator in an untimed pass a phase; predicted: by counting the tensors that our "
    "implementation holds (perfscribe/counters). The optimizer step includes its temporaries. Forward under no_grad "
    "is measured before AdamW has a state. Forward of a training step keeps its graph, and the state, 8 bytes a "
    "parameter, is in its peak; a forward pass alone, as memory_profiling measures it, holds none."
)
PUBLISHED_NOTE = (
    "brandon-snider: H100, TF32 on, mean of 10 steps after 5. damek: GPU not stated, TF32 on, no NVLink. Published "
    "forward times of damek are without a graph. A figure stands beside ours only where size, context, batch and "
    "dtype are the same."
)


def _spread_columns(sample: str, title: str) -> list[t.Column]:
    return [
        t.mean(sample, f"{title}, mean (ms)"),
        t.std(sample, "Std (ms)"),
        t.median(sample, f"{title}, median (ms)"),
        t.iqr(sample, "IQR (ms)"),
    ]


def _time_columns() -> list[t.Column]:
    return [
        *_factors(),
        *_spread_columns("forward_ms", "Forward"),
        *_spread_columns("backward_ms", "Backward"),
        t.derived(
            "backward_by_difference_ms",
            "Backward by difference (ms)",
            predictions.backward_by_difference_ms,
            spread="backward_ms_iqr",
        ),
        *_spread_columns("optimizer_ms", "Optimizer"),
        t.median("forward_no_grad_ms", "Forward under no_grad (ms)"),
        t.median("full_step_ms", "Full step (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.count("forward_ms"),
    ]


def _rate_columns() -> list[t.Column]:
    return [
        *_factors(),
        t.median("full_step_ms", "Full step (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.rate("tokens_per_s", "Tokens/s", predictions.tokens_per_s, "full_step_ms"),
        t.derived("step_tflop", "FLOP of a step (TFLOP)", predictions.step_tflop),
        t.rate("tflop_per_s", "TFLOP/s", predictions.tflop_per_s, "full_step_ms"),
        t.rate("mfu_percent", "MFU (%)", predictions.mfu_percent, "full_step_ms"),
        t.derived("peak_tflop_per_s", "Peak (TFLOP/s)", predictions.peak_tflop_per_s),
        t.count("full_step_ms"),
    ]


def _memory_columns() -> list[t.Column]:
    columns = [
        *_factors(),
        t.value("parameters", "Parameters", exact=True),
        t.derived("predicted_parameters", "Parameters, predicted", predictions.parameters, exact=True),
    ]
    for phase, title in predictions.PHASES.items():
        columns += [
            t.value(f"peak_{phase}_bytes", f"{title}, peak (GiB)", 1 / GIB, f"peak_{phase}_gib"),
            t.derived(f"predicted_{phase}_gib", "Predicted (GiB)", predictions.peak_gib(phase)),
        ]
    return columns


def _published_columns() -> list[t.Column]:
    known = ("size", "seq_len", "batch", "dtype", "warmup_steps")
    without_warmup = ("size", "seq_len", "batch", "dtype")
    return [
        *_factors(),
        t.mean("forward_ms", "Forward, mean (ms)"),
        t.published("end_to_end", "forward_ms", "brandon-snider", "Forward, brandon-snider (ms)", known),
        t.mean("backward_ms", "Backward, mean (ms)"),
        t.published("end_to_end", "backward_ms", "brandon-snider", "Backward, brandon-snider (ms)", known),
        t.median("forward_no_grad_ms", "Forward under no_grad (ms)"),
        t.published("end_to_end", "forward_no_grad_ms", "damek", "Forward, damek (ms)", without_warmup),
        t.mean("forward_backward_ms", "Forward and backward, mean (ms)"),
        t.published("end_to_end", "forward_backward_ms", "damek", "Forward and backward, damek (ms)", without_warmup),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """How time grows with size, what the two ways to time backward say, how good the predictions are."""
    times, rates, memory = (tables[name].ok for name in TABLES[:3])
    return [
        find("cs336.benchmarking_sizes", TABLES[:1], lambda: answers.sizes(times)),
        find("cs336.benchmarking_spread", TABLES[:1], lambda: answers.spread(times)),
        find("cs336.benchmarking_difference", TABLES[:1], lambda: answers.difference(times)),
        find("cs336.benchmarking_rates", TABLES[1:2], lambda: answers.rates(rates)),
        find("cs336.benchmarking_memory", TABLES[2:3], lambda: answers.memory(memory)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Time of a full step over context."""
    caption = (
        "Median time of a full training step over context length, host clock; one panel a dtype, one line a size; "
        "bars around the median are as long as the interquartile range."
    )
    draw = partial(_draw_times, table=tables[TABLES[0]])
    return [f.Figure(FIGURES[0], caption, draw, sample="full_step_ms")]


def _draw_times(canvas: Any, table: Table) -> None:
    rows = table.ok
    dtypes = list(dict.fromkeys(rows["dtype"])) or [""]
    panels = canvas.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    panels[0].set_ylabel("Full step (ms)")
    for axes, dtype in zip(panels, dtypes, strict=True):
        _lines(axes, rows[rows["dtype"] == dtype], "full_step_ms")
        f.mark_statuses(axes, table.frame[table.frame["dtype"] == dtype], "seq_len")
        axes.set_title(dtype)
        axes.set_xlabel("Context length")
        axes.tick_params(axis="x", labelsize="x-small")  # of four panels side by side


def _lines(axes: Any, rows: pd.DataFrame, y: str) -> None:
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    by = f.varying(rows, ("size", "device", "batch"))
    f.lines(axes, rows, "seq_len", y, by, lambda levels: " ".join(map(str, levels)), spread=f"{y}_iqr")
    f.power_of_two_ticks(axes, sorted(set(rows["seq_len"].astype(float))))
