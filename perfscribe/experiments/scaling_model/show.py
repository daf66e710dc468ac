"""Table and figure of what terms measured apart say of more ranks than there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe.experiments.node_network import ALL_REDUCE, Network
from perfscribe.experiments.scaling_model import drawings, rows
from perfscribe.experiments.scaling_model.levels import SHOWN
from perfscribe.experiments.scaling_model.trainings import ModelledLinks
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NOTES = (
    "Step: computing + communicating - overlap x the shorter of both, overlap fitted to the measured steps "
    "(docs/scaling.md); where that misses them, rows that were not measured have no figure.",
    "Links assumed as here are the least that more ranks can cost: times are lower bounds, efficiencies upper ones.",
)
CAPTION = (
    "A training step, and its weak and strong efficiency against one rank by the model. Filled: measured; hollow: the "
    "model's; grey: beyond the reach of any measured count."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a training and number of ranks."""
    links = ModelledLinks(records[ALL_REDUCE], Network.of(records.get("communication_nodes", [])))
    return [t.make(TABLES[0], "Training on more ranks", rows.predicted(records, links), columns(), NOTES)]


def columns() -> list[t.Column]:
    """What is measured and predicted of a step."""
    return [
        t.factor("training", "Training"),
        t.factor("exchange", "Exchange"),
        t.factor("scaling", "Measured scaling"),
        t.factor("ranks", "Ranks"),
        t.factor("origin", "Origin"),
        t.factor("reach", "Reach"),
        t.value("step_ms", "Step (ms)"),
        t.value("model_ms", "By the model (ms)"),
        t.value("residual_percent", "Residual (%)"),
        t.value("band", "Band (ms)", exact=True),
        t.value("samples_per_s", "Samples/s"),
        t.value("compute_ms", "Computing (ms)"),
        t.value("exposed_ms", "Exposed communication (ms)"),
        t.value("limit", "Longest", exact=True),
        t.value("weak_percent", "Weak efficiency (%)"),
        t.value("strong_percent", "Strong efficiency (%)"),
        t.value("measured_percent", "Measured efficiency (%)"),
        t.value("textbook_percent", "By the textbook (%)"),
        t.value("links", "Links", exact=True),
        t.value("holds", "Model holds", exact=True),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Steps and efficiencies over ranks."""
    shown = tables[TABLES[0]].ok
    parts = (partial(drawings.steps, rows=shown), partial(drawings.efficiencies, rows=shown))
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(*parts, heights=(3.4, 3)), (7.0, 6.4))]
