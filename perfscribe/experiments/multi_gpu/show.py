"""Tables and figure of multi_gpu."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe.experiments import training_columns as c
from perfscribe.experiments.multi_gpu import drawings
from perfscribe.experiments.multi_gpu.levels import SHOWN
from perfscribe.experiments.training_rows import Links, by_placement, rows
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
CAPTION = "Samples a second by Trainer's clock; hollow: predicted, dashed: in proportion to ranks."


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """One node, several nodes."""
    one, several = by_placement(rows(records["multi_gpu"], Links.of(records)))
    notes = [c.SCALE_NOTE, c.PREDICTED_NOTE]
    return [
        t.make(TABLES[0], "BLOOM on several GPUs of one node", one, columns(), notes),
        t.make(TABLES[1], "BLOOM on several nodes", several, columns(), notes),
    ]


def columns() -> list[t.Column]:
    """The workshop's eight columns, then ours."""
    return [
        *c.setup(),
        c.samples_default(),
        t.value("samples_scale", "Samples/s Scale Factor"),
        c.runtime(),
        t.value("runtime_scale", "Runtime Scale Factor"),
        c.loss(),
        c.memory_default(),
        c.origin(),
        t.factor("model_name", "Model"),
        *c.workload(),
        c.samples_stepping(),
        c.memory_peak(),
        *c.steps(),
        *c.wrapped(),
        c.rows_from(),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Samples/s over GPUs."""
    draw = partial(drawings.samples_per_s, rows=tables[TABLES[0]].ok, y="train_samples_per_second")
    return [f.Figure(FIGURES[0], CAPTION, draw, sample="step_ms")]
