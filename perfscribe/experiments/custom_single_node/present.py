"""Tables, figure and answers of the workshop's small model on one device, measured by baseline."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe import figures as f
from perfscribe.experiments.baseline import answers, columns, drawings, rows
from perfscribe.experiments.custom_single_node import shapes
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "fsdp.custom_single_node",
    "fsdp.custom_single_node_losses",
    "fsdp.custom_single_node_answers",
    "fsdp.custom_shapes",
)
FIGURES = ("fsdp.custom_single_node_losses",)
READS = ("baseline",)
NINE, LOSSES, ANSWERS, SHAPES = TABLES


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's table, evaluations and answers of its small model, and the model beside its other tables'."""
    own = rows.of_model(records["baseline"], "simple_gpt")
    return [
        columns.nine(NINE, "Custom model on one device, no FSDP", own),
        columns.evaluations(LOSSES, "Custom model: losses at every evaluation", own),
        columns.answers(ANSWERS, "Custom model: answers before and after training", own),
        shapes.table(SHAPES, "The model of each of the workshop's custom tables", own),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Its losses over epochs."""
    caption = f"The workshop's small model. {drawings.CAPTION}"
    return [f.Figure(FIGURES[0], caption, lambda canvas: drawings.losses(canvas, tables[LOSSES]), drawings.SIZE_IN)]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What its labels train, what it answers, and that it is another model than that of the rows it stands beside."""
    shown = tables[SHAPES].ok
    return [
        find("fsdp.custom_copying", (LOSSES,), lambda: answers.copying(tables[LOSSES].ok)),
        find("fsdp.custom_answers", (ANSWERS,), lambda: answers.answered(tables[ANSWERS].ok)),
        find("fsdp.custom_shapes", (SHAPES,), lambda: shapes.answer(shown)),
    ]
