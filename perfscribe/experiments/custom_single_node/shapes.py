"""The shapes that the workshop's custom tables mix, with their parameters by formula beside those trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from perfscribe import tables as t
from perfscribe.experiments.baseline import rows
from perfscribe.findings import need
from perfscribe.models.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY as TOKENIZER
from perfscribe.models.workshop_shapes import SimpleGptShape
from perfscribe.records import Record
from perfscribe.tables import Table

SINGLE = "single node, as its script runs"
SEVERAL = "several GPUs and nodes, as their scripts run"
EXPORTED = "several GPUs and nodes, with the VOCAB_SIZE that is exported"
TRAINED = "trained here"
WORKSHOP = {
    SINGLE: SimpleGptShape(TOKENIZER, 1024, 1, 8, 8192, tied=False),
    SEVERAL: SimpleGptShape(TOKENIZER),
    EXPORTED: SimpleGptShape(),
}
NOTE = "Parameters by formula; of what was trained here they were counted on the model, too, and are the same."


def _row(record: Record, name: str, shape: SimpleGptShape, counted: object) -> Record:
    values = {**vars(shape), "tied": "tied" if shape.tied else "untied", "parameters": shape.parameters}
    values["counted"] = counted
    return replace(record, factors={"which": name}, values=values, samples={}, warmup={}, series={})


def table(table_id: str, title: str, records: Sequence[Record]) -> Table:
    """A row a shape: the workshop's three by formula, then what was trained here; ValueError where a count differs."""
    found = []
    for record in records[:1]:
        arithmetic = replace(record, status="ok", reason="", flags=[], environments=[], origin="predicted")
        found += [_row(arithmetic, name, shape, "by formula alone") for name, shape in WORKSHOP.items()]
    done = set()
    for record in records:
        shape = rows.shape(record)
        if not record.ok or shape in done:
            continue
        done.add(shape)
        if shape.parameters != record.values["parameters"]:
            raise ValueError(f"{shape}: {record.values['parameters']} parameters, by formula {shape.parameters}")
        found.append(_row(record, TRAINED, shape, record.values["parameters"]))
    columns = [
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
    return t.make(table_id, title, found, columns, (NOTE,))


def answer(frame: pd.DataFrame) -> str:
    """How the single GPU's row differs from those that its tables set beside it."""
    trained = need(frame[frame["which"] == TRAINED], 1, "trainings of the small model").iloc[0]
    by_name = frame.set_index("which")
    single, several, exported = (by_name.loc[name] for name in (SINGLE, SEVERAL, EXPORTED))
    return (
        f"The single-node script trains {single['num_layers']} layer of width {single['hidden_size']} with an "
        f"{single['tied']} head, {single['parameters']} parameters; the rows of several GPUs beside it "
        f"{several['num_layers']} layers of width {several['hidden_size']} with a {several['tied']} one, "
        f"{several['parameters']}: no scaling can be read from the one to the other. Both take the tokenizer's "
        f"{several['vocab_size']} entries, although VOCAB_SIZE={exported['vocab_size']} is exported, with which it "
        f"would be {exported['parameters']}. The model trained here has {trained['parameters']}."
    )
