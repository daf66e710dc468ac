"""Tables, figure and answer of benchmarking_script's question about warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, find, from_to, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure, steady_from
from perfscribe.tables import Table

TABLES = ("cs336.benchmarking_warmup", "cs336.benchmarking_steps")
FIGURES = ("cs336.benchmarking_steps",)
SETTING = ("size", "seq_len", "dtype", "device")
NOTE = (
    "Each row is a process of its own, in which nothing but making the model and the optimizer comes before the first "
    "step. Steady from: the first step, warm-up counted, after which a rolling median stays within 1 % of the last "
    "steps' median. No step is dropped from the samples."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a number of warm-up steps; and every single step."""
    cells = records["warmup"]
    return [
        t.make(TABLES[0], "Training steps after few warm-up steps", cells, _columns(), [NOTE]),
        t.make(TABLES[1], "Every single step", _single_steps(cells), _step_columns()),
    ]


def _factors(*more: t.Column) -> list[t.Column]:
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        t.factor("warmup_steps", "Warm-up steps"),
        *more,
    ]


def _columns() -> list[t.Column]:
    known = ("size", "seq_len", "batch", "dtype", "warmup_steps")
    return [
        *_factors(),
        t.mean("forward_ms", "Forward, mean (ms)"),
        t.std("forward_ms", "Std (ms)"),
        t.published("end_to_end", "forward_ms", "brandon-snider", "Forward, brandon-snider (ms)", known),
        t.published("end_to_end", "forward_std_ms", "brandon-snider", "Std, brandon-snider (ms)", known),
        t.mean("backward_ms", "Backward, mean (ms)"),
        t.std("backward_ms", "Std (ms)"),
        t.derived("first_step_ms", "First timed step (ms)", lambda r: r.samples["full_step_ms"][0][0]),
        t.median("full_step_ms", "Full step, median (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.derived("steady_from", "Steady from step", _steady, exact=True),
        t.count("full_step_ms"),
    ]


def _steady(record: Record) -> Any:
    steps = [*record.warmup.get("full_step_ms", [[]])[0], *record.samples["full_step_ms"][0]]
    found = steady_from(steps)
    return "never within 1 %" if found is None else found + 1


def _single_steps(cells: list[Record]) -> list[Record]:
    """One record a step, warm-up steps first; a cell without figures stays one row."""
    rows: list[Record] = []
    for record in cells:
        if not record.ok:
            rows.append(replace(record, factors={**record.factors, "step": "all"}))
            continue
        before = record.warmup.get("full_step_ms", [[]])[0]
        for number, time_ms in enumerate([*before, *record.samples["full_step_ms"][0]], start=1):
            values = {"step_ms": time_ms, "kind": "warm-up" if number <= len(before) else "timed"}
            rows.append(replace(record, factors={**record.factors, "step": number}, samples={}, values=values))
    return rows


def _step_columns() -> list[t.Column]:
    return [
        *_factors(t.factor("step", "Step")),
        t.value("kind", "Kind", exact=True),
        t.value("step_ms", "Full step (ms)"),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What the first steps cost without warm-up."""
    rows = tables[TABLES[0]].ok
    return [find("cs336.benchmarking_warmup", TABLES[:1], lambda: _without_warmup(rows))]


def _without_warmup(rows: pd.DataFrame) -> str:
    cold = need(rows[rows["warmup_steps"] == 0], 1, "cells without warm-up")
    warmest = rows[rows["warmup_steps"] == rows["warmup_steps"].max()]
    sentences, factors_over = [], []
    for _, row in cold.iterrows():
        same = warmest[(warmest[list(SETTING)] == row[list(SETTING)]).all(axis=1)]
        if same.empty or not same["warmup_steps"].iloc[0]:
            continue
        first, steady = float(row["first_step_ms"]), float(same["full_step_ms"].iloc[0])
        factors_over.append(first / steady)
        before, after = (
            f"{format_figure(float(r['forward_ms_mean']))} ms with a standard deviation of "
            f"{format_figure(float(r['forward_ms_std']))} ms"
            for r in (row, same.iloc[0])
        )
        sentences.append(
            f"{row['size']}: first step {format_figure(first)} ms against {format_figure(steady)} ms once warm; mean "
            f"forward {before}, against {after}"
        )
    if not sentences:
        raise CannotTell("no size was measured both with and without warm-up")
    second = [float(r) for r in _second_over_steady(rows)]
    after_one = (
        f" The second step of a process takes {from_to(second, '{:.3g}'.format)} times as long." if second else ""
    )
    return (
        f"Without warm-up the first step takes {from_to(factors_over, '{:.3g}'.format)} times as long as "
        f"steps that {int(warmest['warmup_steps'].iloc[0])} others came before.{after_one} "
        + "; ".join(sentences)
        + "."
    )


def _second_over_steady(rows: pd.DataFrame) -> list[float]:
    """First timed step after one warm-up step over the median of timed steps, for each cell that has it."""
    return [
        float(row["first_step_ms"]) / float(row["full_step_ms"])
        for _, row in rows[rows["warmup_steps"] == 1].iterrows()
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Every single step, one panel a number of warm-up steps."""
    caption = (
        "Every step of a fresh process from the first on, warm-up steps hollow: forward, backward and optimizer "
        "together; one panel a number of warm-up steps, one line a size."
    )
    return [f.Figure(FIGURES[0], caption, lambda canvas: _draw(canvas, tables[TABLES[1]]), (7.0, 4.2), "full_step_ms")]


def _draw(canvas: Any, table: Table) -> None:
    rows = table.ok
    levels = sorted(set(rows["warmup_steps"])) or [0]
    for axes, level in zip(canvas.subplots(1, len(levels), sharey=True, squeeze=False)[0], levels, strict=True):
        chosen = rows[rows["warmup_steps"] == level]
        axes.set_title(f"warm-up {level}")
        if chosen.empty:
            f.no_data(axes, "no cell was measured")
            continue
        by = f.varying(chosen, ("size", "seq_len", "dtype", "device"))
        f.lines(axes, chosen, "step", "step_ms", by, lambda levels: " ".join(map(str, levels)))
        waiting = chosen[chosen["kind"] == "warm-up"]
        axes.plot(
            waiting["step"].astype(float), waiting["step_ms"].astype(float), "o", color="white", markersize=2, zorder=5
        )
        axes.set_xscale("linear")
        axes.set_xlabel("Step")
    canvas.axes[0].set_ylabel("Full step (ms)")
