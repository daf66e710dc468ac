"""Tables, figure and answers of BLOOM on one device without FSDP, and of what each way to label trains."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from perfscribe import figures as f
from perfscribe.experiments.baseline import answers, columns, drawings, rows
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("fsdp.baseline", "fsdp.baseline_losses", "fsdp.baseline_answers", "fsdp.labels", "fsdp.single_runs")
FIGURES = ("fsdp.baseline_losses",)
NINE, LOSSES, ANSWERS, LABELS, RUNS = TABLES
BLOOM = "bloom"


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's table, evaluations and answers of BLOOM; ways to label and trainings of both models."""
    cells = records["baseline"]
    own = rows.of_model(cells, BLOOM)
    return [
        columns.nine(NINE, "Baseline: BLOOM on one device, no FSDP", own),
        columns.evaluations(LOSSES, "BLOOM: losses at every evaluation", own),
        columns.answers(ANSWERS, "BLOOM: answers before and after training", own),
        columns.labels(LABELS, "What each way to label trains", cells),
        columns.runs(RUNS, "Trainings on one device", cells),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """BLOOM's losses over epochs."""
    caption = f"BLOOM. {drawings.CAPTION}"
    return [f.Figure(FIGURES[0], caption, lambda canvas: drawings.losses(canvas, tables[LOSSES]), drawings.SIZE_IN)]


def of_runs(table: Table, bloom: bool) -> pd.DataFrame:
    """The trainings of one of the two models."""
    named_so = table.ok["model_name"].map(lambda name: str(name).startswith("SimpleGPTModel"))
    return table.ok[~named_so.astype(bool) if bloom else named_so.astype(bool)]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What training BLOOM costs and gives, and what the workshop's labels and scores do to it."""
    runs, evaluations = of_runs(tables[RUNS], bloom=True), tables[LOSSES].ok
    labelled, answered = tables[LABELS].ok, tables[ANSWERS].ok
    return [
        find("fsdp.baseline_result", (RUNS,), lambda: answers.result(runs)),
        find("fsdp.baseline_memory", (RUNS,), lambda: answers.memory(runs)),
        find("fsdp.baseline_utilisation", (RUNS,), lambda: answers.utilisation(runs)),
        find("fsdp.baseline_losses", (LOSSES, RUNS), lambda: answers.losses(evaluations, runs)),
        find("fsdp.labels_answer", (LABELS,), lambda: answers.labels(labelled)),
        find("fsdp.labels_copying", (LABELS,), lambda: answers.copied_labels(labelled)),
        find("fsdp.labels_truncation", (LABELS,), lambda: answers.truncation(labelled)),
        find("fsdp.baseline_answers", (ANSWERS,), lambda: answers.answered(answered)),
        find("fsdp.scores", (ANSWERS,), lambda: answers.scoring(answered)),
    ]
