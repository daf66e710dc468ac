"""Tables and figure of how few warm-up steps change timings: a question of CS336's problem benchmarking_script."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from perfscribe.experiments.cs336.warmup.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
FACTORS = t.factors(size="Size", seq_len="Context", dtype="Dtype", device="Device", warmup_steps="Warm-up steps")
NOTE = "Each row is a fresh process, in which only model and optimizer are made before the first step."


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return two tables: a row per cell, and a row per single step of each cell."""
    cells = records["warmup"]
    return [
        t.make(TABLES[0], "Training steps after few warm-up steps", cells, COLUMNS, [NOTE]),
        t.make(TABLES[1], "Every single step", t.expanded(cells, ["step"], _single_steps), STEPS),
    ]


COLUMNS = [
    *FACTORS,
    t.mean("forward_ms", "Forward, mean (ms)"),
    t.std("forward_ms", "Std (ms)"),
    t.published("end_to_end", "brandon-snider", "forward_ms", "Forward, brandon-snider (ms)"),
    t.published("end_to_end", "brandon-snider", "forward_std_ms", "Std, brandon-snider (ms)"),
    t.derived("first_forward_ms", "First timed forward (ms)", lambda r: float(r.samples["forward_ms"][0][0])),
    t.derived("forward_ms", "Forward, median (ms)", lambda record: t.summary(record, "forward_ms").median),
    *t.timed("full_step_ms", "Full step, median (ms)"),
    t.count("full_step_ms"),
    *t.settings("batch"),
]


def _single_steps(record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every step, warm-up steps first."""
    names = ("full_step_ms", "forward_ms", "backward_ms", "optimizer_ms")
    steps = zip(*([*record.warmup.get(name, [[]])[0], *record.samples[name][0]] for name in names), strict=True)
    for number, (step_ms, *phases) in enumerate(steps, start=1):
        kind = "warm-up" if number <= record.factors["warmup_steps"] else "timed"
        yield number, {"step_ms": step_ms, "kind": kind, **dict(zip(names[1:], phases, strict=True))}


STEPS = [
    *FACTORS,
    t.factor("step", "Step"),
    t.value("kind", "Kind", exact=True),
    t.value("step_ms", "Full step (ms)"),
    t.value("forward_ms", "Of it forward (ms)"),
    t.value("backward_ms", "Backward (ms)"),
    t.value("optimizer_ms", "AdamW (ms)"),
]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of every step's forward, one panel per number of warm-up steps."""
    caption = (
        "Forward of every step of a fresh process from the first on, warm-up steps hollow; one panel per number of "
        "warm-up steps, one line per size. Host clock."
    )
    return [f.Figure(FIGURES[0], caption, f.of(tables[TABLES[1]].ok, _draw), (7.0, 4.2), "forward_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    levels = sorted(set(rows["warmup_steps"]))
    for axes, level in zip(canvas.subplots(1, len(levels), sharey=True, squeeze=False)[0], levels, strict=True):
        chosen = rows[rows["warmup_steps"] == level]
        axes.set_title(f"warm-up {level}")
        grouping = f.varying(chosen, ("size", "seq_len", "dtype", "device"))
        f.lines(axes, chosen, "step", "forward_ms", grouping, lambda levels: " ".join(map(str, levels)))
        waiting = chosen[chosen["kind"] == "warm-up"]
        xs, ys = (waiting[column].astype(float) for column in ("step", "forward_ms"))
        axes.plot(xs, ys, "o", color="white", markersize=2, zorder=5)
        axes.set_xscale("linear")
        axes.set_xlabel("Step")
    canvas.axes[0].set_ylabel("Forward (ms)")
    if (rows["kind"] == "warm-up").any():
        hollow = f.key("hollow: warm-up step", linestyle="none", marker="o", markerfacecolor="white")
        canvas.legend(handles=[hollow], fontsize=f.LABEL_POINTS, loc="outside upper center")
