"""Tables and figure of the workshop's small model on one device, measured by baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY as TOKENIZER
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.experiments.baseline import rows
from perfscribe.experiments.baseline import show as shared
from perfscribe.experiments.custom_single_node.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SINGLE = "single node, as its script runs"
WORKSHOP = {
    SINGLE: SimpleGptShape(TOKENIZER, 1024, 1, 8, 8192, tied=False),
    "several GPUs and nodes, as their scripts run": SimpleGptShape(TOKENIZER),
    "several GPUs and nodes, with the VOCAB_SIZE that is exported": SimpleGptShape(),
}


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's table, evaluations and answers of its small model, and the model beside its other tables'."""
    own = rows.of_model(records["baseline"], "simple_gpt")
    return [
        shared.nine(TABLES[0], "Custom model on one device, no FSDP", own),
        shared.evaluations(TABLES[1], "Custom model: losses at every evaluation", own),
        shared.answered(TABLES[2], "Custom model: answers before and after training", own),
        t.make(TABLES[3], "The model of each of the workshop's custom tables", shapes(own), shape_columns()),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Its losses over epochs."""
    return [shared.losses(FIGURES[0], tables[TABLES[1]])]


def shapes(records: Sequence[Record]) -> list[Record]:
    """A row a shape: the workshop's three by formula, then what was trained here; ValueError where a count differs."""
    found = []
    for record in records[:1]:
        arithmetic = replace(record, status="ok", reason="", flags=[], environments=[], origin="predicted")
        found += [_row(arithmetic, name, shape, "by formula alone") for name, shape in WORKSHOP.items()]
    trained: dict[SimpleGptShape, Record] = {}
    for record in records:
        if record.ok:
            trained.setdefault(rows.shape(record), record)
    for shape, record in trained.items():
        counted = record.values["parameters"]
        if shape.parameters != counted:
            raise ValueError(f"{shape}: {counted} parameters, by formula {shape.parameters}")
        found.append(_row(record, "trained here", shape, counted))
    return found


def _row(record: Record, name: str, shape: SimpleGptShape, counted: object) -> Record:
    values = {**vars(shape), "tied": "tied" if shape.tied else "untied", "parameters": shape.parameters}
    values["counted"] = counted
    return replace(record, factors={"which": name}, values=values, samples={}, warmup={}, series={})


def shape_columns() -> list[t.Column]:
    """Sizes and parameters."""
    return [
        t.factor("which", "Table of the workshop"),
        t.value("num_layers", "Layers", exact=True),
        t.value("hidden_size", "Width", exact=True),
        t.value("num_heads", "Heads", exact=True),
        t.value("ffn", "Feed-forward", exact=True),
        t.value("vocab_size", "Vocabulary", exact=True),
        t.value("tied", "Head", exact=True),
        t.value("parameters", "Parameters", exact=True),
        t.value("counted", "Counted", exact=True),
    ]
