"""Tables, figures and answers of memory_profiling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.memory_profiling import answers, columns, drawings, prediction_answers, rows
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.memory_peaks",
    "cs336.memory_by_context",
    "cs336.memory_prediction",
    "cs336.memory_kinds",
    "cs336.memory_residual",
    "cs336.memory_largest",
    "cs336.memory_published",
    "cs336.memory_timelines",
)
FIGURES = (
    "cs336.memory_timeline",
    "cs336.memory_by_context",
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Peaks by phase and by context, their prediction, kinds, the residual stream, the largest blocks, timelines."""
    cells = records["memory_profiling"]
    residual = rows.of_mode(cells, "forward")
    return [
        t.make(TABLES[0], "Peak memory by phase", cells, columns.peaks(), columns.PEAK_NOTES),
        t.make(TABLES[1], "Peak memory by context", rows.by_context(cells), columns.by_context(), columns.MODE_NOTES),
        t.make(TABLES[2], "Prediction by phase", rows.by_phase(cells), columns.prediction(), columns.PREDICTION_NOTES),
        t.make(TABLES[3], "What the memory holds at the peak", cells, columns.kinds(), columns.KIND_NOTES),
        t.make(TABLES[4], "A tensor of the residual stream", residual, columns.residual(), columns.RESIDUAL_NOTES),
        t.make(TABLES[5], "Largest allocations", rows.largest(cells), columns.largest(), columns.LARGEST_NOTES),
        t.make(TABLES[6], "Beside published figures", cells, columns.published(), columns.PUBLISHED_NOTES),
        t.make(TABLES[7], "Recorded histories", cells, columns.timelines(), columns.TIMELINE_NOTES),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """The timelines that the handout asks for; small multiples over contexts above the peaks over context."""
    timelines, contexts = tables[TABLES[7]], tables[TABLES[1]]
    passes = f.stacked(partial(drawings.forward, table=timelines), partial(drawings.step, table=timelines))
    over = f.stacked(
        partial(drawings.contexts, table=timelines), partial(drawings.peaks, table=contexts), heights=(4.4, 3.6)
    )
    caption = f"Above: {drawings.CONTEXTS_CAPTION} Below: {drawings.PEAKS_CAPTION}"
    return [
        f.Figure(FIGURES[0], drawings.PASSES_CAPTION, passes, (7.0, 6.4)),
        f.Figure(FIGURES[1], caption, over, (7.0, 8.0)),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """One sentence for each part of the handout's problem, and how good prediction and recording are."""
    ok = {name: tables[name].ok for name in TABLES}
    contexts, phases, kinds, residual, largest, published, timelines = (ok[name] for name in TABLES[1:])
    return [
        find("cs336.memory_timeline", TABLES[7:8], lambda: answers.timeline(timelines)),
        find("cs336.memory_by_context", (TABLES[1], TABLES[3]), lambda: answers.by_context(contexts, kinds)),
        find("cs336.memory_mixed_precision", (TABLES[1], TABLES[3]), lambda: answers.mixed_precision(contexts, kinds)),
        find("cs336.memory_residual", TABLES[4:5], lambda: answers.residual(residual)),
        find("cs336.memory_largest", TABLES[5:6], lambda: answers.largest(largest)),
        find("cs336.memory_prediction", TABLES[2:3], lambda: prediction_answers.prediction(phases)),
        find("cs336.memory_published", TABLES[6:7], lambda: prediction_answers.published(published)),
        find("cs336.memory_recording", TABLES[7:8], lambda: prediction_answers.recording(timelines)),
    ]
