"""Tables, figure and answers of weak_scaling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe import training_columns as c
from perfscribe.experiments.weak_scaling import answers, columns
from perfscribe.experiments.weak_scaling import rows as r
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table
from perfscribe.training_prediction import Links

TABLES = ("fsdp.weak_setup", "fsdp.weak_scaling")
FIGURES = ("fsdp.weak_scaling",)
READS = ("all_reduce", "communication_nodes")
CAPTION = (
    "Weak-scaling efficiency by work over ranks, measured and (hollow) predicted, against what the workshop's formula "
    "would print (dotted)."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The set-up with what it asks of a GPU, and what was measured."""
    cells = records["weak_scaling"]
    measured = r.measured(cells, Links.of(records))
    notes = [
        columns.VARIANT_NOTE,
        columns.EFFICIENCY_NOTE,
        c.CALLBACK_NOTE,
        c.TWIN_NOTE,
        *c.mfu_notes(cells),
        c.PREDICTED_NOTE,
        c.NODES_NOTE,
    ]
    return [
        t.make(TABLES[0], "Set-up", r.set_ups(cells), columns.setup(), [columns.SETUP_NOTE, columns.VARIANT_NOTE]),
        t.make(TABLES[1], "Weak scaling", measured, columns.measured(), notes),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Efficiency over ranks."""
    draw = partial(answers.draw, rows=tables[TABLES[1]].ok)
    return [f.Figure(FIGURES[0], CAPTION, draw, sample="step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Efficiency; then the workshop's defects one by one. The set-up is arithmetic: its rows need no measurement."""
    setup, rows = tables[TABLES[0]].frame, tables[TABLES[1]].ok
    return [
        find("fsdp.weak_efficiency", TABLES[1:], lambda: answers.efficiency(rows)),
        find("fsdp.defect_inverted", TABLES[1:], lambda: answers.inverted(rows)),
        find("fsdp.defect_batches", TABLES[:1], lambda: answers.batches(setup)),
        find("fsdp.defect_neither", TABLES[:1], lambda: answers.neither(setup)),
        find("fsdp.defect_work", TABLES[:1], lambda: answers.work(setup)),
        find("fsdp.defect_doubling", TABLES[:1], lambda: answers.doubling(setup)),
    ]
