"""Tables and figure of custom_multi_gpu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.experiments import training_columns as c
from perfscribe.experiments.custom_multi_gpu.levels import SHOWN
from perfscribe.experiments.custom_multi_gpu.measure import SHAPE
from perfscribe.experiments.multi_gpu import drawings
from perfscribe.experiments.training_rows import NOT_TRAINED, PREDICTED, Links, by_placement, rows
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
# What trains in the workshop's tables: on a CPU Trainer does not shard, and the bare loop stands in.
WORKSHOPS_LOOP = {"cuda": "trainer", "cpu": "bare loop"}
LOOPS_NOTES = (
    "Bare loop: fully_shard without Trainer; tuned: bf16, compiled, with a batch that fills the memory.",
    "Efficiency: samples/s of steps alone per rank, over those of the loop's first row.",
)
CLOCKS = {
    "train_samples_per_second": "Trainer's default",
    "samples_per_s_callback": "callback",
    "stepping_samples_per_second": "steps alone",
}
CAPTION = (
    "Above: samples a second of the same trainings by Trainer's clock, the workshop's callback and of steps alone. "
    "Below: steps alone by loop; hollow: predicted, dashed: in proportion to ranks."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's two, and all loops."""
    every = rows(records["custom_multi_gpu"], Links.of(records))
    one, several = by_placement([r for r in every if r.factors["loop"] == WORKSHOPS_LOOP[r.factors["device"]]])
    loops, _ = by_placement(every)
    notes = [c.CLOCKS_NOTE, c.PREDICTED_NOTE]
    return [
        t.make(TABLES[0], "Custom model on several GPUs of one node", one, columns(), notes),
        t.make(TABLES[1], "Custom model on several nodes", several, columns(), notes),
        t.make(TABLES[2], "Trainer, a bare loop, and a tuned one", loops, loop_columns(), LOOPS_NOTES),
    ]


def columns() -> list[t.Column]:
    """The workshop's nine columns, then ours."""
    return [
        *c.setup(),
        c.samples_default("Samples/s (Default)"),
        c.samples_callback(),
        c.memory_default("GPU Memory (GiB, Default)"),
        c.memory_callback(),
        c.utilisation(),
        c.loss(),
        c.runtime(),
        c.origin(),
        t.factor("vocab_size", "Vocabulary"),
        t.value("parameters", "Parameters", exact=True),
        t.Column("source_parameters", "Parameters, as its scripts run", _as_scripts_run, kind="unshown"),
        t.Column("first_loss", "First loss logged", first_loss, kind="unshown"),
        *c.workload(),
        c.samples_stepping(),
        c.memory_peak(),
        c.mfu(),
        *c.steps(),
        *c.wrapped(),
        c.rows_from(),
    ]


def loop_columns() -> list[t.Column]:
    """What each loop makes of the ranks."""
    return [
        *c.setup(),
        c.origin(),
        t.factor("loop", "Loop"),
        t.factor("device", "Device"),
        t.factor("dtype", "Dtype"),
        t.derived("batch", "Rows a rank and step", _rows_per_step, exact=True),
        c.samples_stepping(),
        t.derived("efficiency", "Efficiency (%)", lambda r: r.values["rate_efficiency"] if r.ok else None),
        c.mfu(),
        c.memory_peak(),
        t.derived("over_bare", "Step over the bare loop's (×)", lambda r: r.values["over_bare"] if r.ok else None),
        *c.steps(),
        *c.wrapped(),
    ]


def _as_scripts_run(record: Record) -> int:
    """Parameters with the vocabulary that the workshop's scripts take, the tokenizer's, whatever is exported."""
    shape = SimpleGptShape(**{name: record.factors[name] for name in SHAPE})
    return replace(shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY).parameters


def first_loss(record: Record) -> Any:
    """The first that was logged: of a step, or the mean of the first few; why not where none was."""
    without = NOT_TRAINED if record.origin == PREDICTED else "none logged"
    return next(iter(record.series.get("train_loss", [])), without)


def _rows_per_step(record: Record) -> Any:
    if not record.ok:
        return None
    return record.values.get("batch_found", record.factors["batch_size"] * record.factors["grad_acc"])


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Three clocks over ranks; the loops over ranks."""
    clocks = partial(_draw_clocks, rows=tables[TABLES[0]].ok)
    loops = partial(drawings.samples_per_s, rows=tables[TABLES[2]].ok, y="stepping_samples_per_second")
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(clocks, loops), (7.0, 6.6), sample="step_ms")]


def _draw_clocks(canvas: Any, rows: pd.DataFrame) -> None:
    axes = canvas.subplots()
    if rows.empty:
        f.no_data(axes, "not measured")
        return
    rows = drawings.main_device(rows)
    drawings.over_ranks(axes, ((name, rows, column) for column, name in CLOCKS.items()))
    drawings.finish(axes, rows, "Samples/s")
