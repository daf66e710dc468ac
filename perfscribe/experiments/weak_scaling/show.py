"""Tables and figure of weak_scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.experiments import training_columns as c
from perfscribe.experiments.multi_gpu import drawings
from perfscribe.experiments.training_rows import Links
from perfscribe.experiments.weak_scaling import rows as r
from perfscribe.experiments.weak_scaling.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SETUP_NOTES = (
    "By arithmetic; FLOP: matrix products of forward and backward in an optimizer step.",
    "As it ran: the workshop's scripts take the tokenizer's vocabulary and one row per GPU.",
)
NOTES = (
    "Efficiency: T_base / T_current of a step's median, by work times the FLOP of a GPU over the base's; inverted: "
    "T_current / T_base of the runtimes per step.",
    c.PREDICTED_NOTE,
)
CAPTION = "Weak-scaling efficiency by median steps, first row over row; hollow: predicted."


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The set-up with what it asks of a GPU, and what was measured."""
    cells = records["weak_scaling"]
    return [
        t.make(TABLES[0], "Set-up of weak scaling", r.set_ups(cells), setup(), SETUP_NOTES),
        t.make(TABLES[1], "Weak scaling", r.measured(cells, Links.of(records)), measured(), NOTES),
    ]


def _computed(name: str, title: str, get: Callable[[Record], Any], exact: bool = False) -> t.Column:
    """Known for every row, measured or not."""
    return t.Column(name, title, get, kind="factor", exact=exact)


def _as_asked() -> list[t.Column]:
    return [
        t.factor("variant", "Variant"),
        t.factor("world_size", "GPUs"),
        t.factor("num_layers", "Num Layers"),
        t.factor("batch_size", "Per-GPU Batch"),
    ]


def setup() -> list[t.Column]:
    """What each row asks of a GPU."""
    return [
        *_as_asked(),
        _computed("total_batch", "Total batch", lambda row: r.setup_of(row).total_batch, exact=True),
        _computed("parameters", "Total Params", lambda row: r.setup_of(row).shape.parameters, exact=True),
        _computed("parameters_per_gpu", "Params a GPU (M)", lambda row: r.setup_of(row).parameters_per_gpu / 1e6),
        _computed("tokens_per_gpu", "Tokens a GPU", lambda row: r.setup_of(row).tokens_per_gpu, exact=True),
        _computed("tflop_per_gpu", "TFLOP a GPU", lambda row: r.setup_of(row).flop_per_gpu / 1e12),
        _computed("steps_per_epoch", "Steps an epoch", r.steps_per_epoch, exact=True),
        _computed("ran_parameters", "Params as it ran", lambda row: r.as_it_ran(row, "parameters"), exact=True),
        _computed("ran_tflop", "TFLOP a GPU as it ran", lambda row: r.as_it_ran(row, "tflop")),
        _computed("ran_steps", "Steps an epoch as it ran", lambda row: r.as_it_ran(row, "steps"), exact=True),
        _computed("asked_tflop", "TFLOP a GPU, its batch, that vocabulary", lambda row: r.as_it_ran(row, "asked")),
        t.factor("device", "Device"),
    ]


def measured() -> list[t.Column]:
    """The workshop's ten columns, then ours."""
    return [
        *_as_asked(),
        _computed("total_params", "Total Params", lambda row: r.setup_of(row).shape.parameters, exact=True),
        c.samples_callback(),
        c.memory_callback(),
        c.utilisation(),
        c.loss(),
        c.runtime(),
        t.value("efficiency", "Efficiency (%)"),
        t.value("inverted", "Inverted, the workshop's (%)"),
        t.value("runtime_efficiency", "Efficiency of the runtime (%)"),
        t.value("work_efficiency", "Efficiency by work (%)"),
        c.origin(),
        c.nodes(),
        c.samples_stepping(),
        c.memory_peak(),
        c.mfu(),
        *c.steps(),
        *c.wrapped(),
        t.factor("device", "Device"),
        t.factor("loop", "Loop"),
        t.factor("dtype", "Dtype"),
        t.factor("num_epochs", "Epochs"),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Efficiency over ranks."""
    return [f.Figure(FIGURES[0], CAPTION, partial(_draw, rows=tables[TABLES[1]].ok), sample="step_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    """A line each variant."""
    axes = canvas.subplots()
    rows = drawings.numbers(rows, "efficiency")
    rows = drawings.main_device(rows)
    if rows["world_size"].nunique() < 2:
        f.no_data(axes, "not measured on several numbers of ranks")
        return
    variants = rows.groupby("variant", sort=False)
    drawings.over_ranks(axes, ((variant, own, "efficiency") for variant, own in variants))
    drawings.finish(axes, rows, "Efficiency (%)")
