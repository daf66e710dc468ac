"""Tables, figures and answers of optimizer_state_sharding."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.optimizer_state_sharding import (
    answers,
    columns,
    drawings,
    notes,
    published,
    rows,
    time_columns,
)
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "cs336.sharding_memory",
    "cs336.sharding_kinds",
    "cs336.sharding_prediction",
    "cs336.sharding_saved",
    "cs336.sharding_times",
    "cs336.sharding_speed",
    "cs336.sharding_zero",
    "cs336.sharding_published",
)
FIGURES = ("cs336.sharding_memory_and_time",)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Memory by moment and kind, its prediction, what is saved, times, their ratios, ZeRO by arithmetic, published."""
    cells = records["optimizer_state_sharding"]
    each, moments = rows.by_implementation(cells), rows.by_moment(cells)
    pairs = rows.comparisons(cells)
    return [
        t.make(TABLES[0], "Memory with and without sharding", each, columns.memory(), notes.MEMORY_NOTES),
        t.make(TABLES[1], "What the memory consists of", moments, columns.kinds(), notes.KIND_NOTES),
        t.make(TABLES[2], "Memory predicted", moments, columns.prediction(), notes.PREDICTION_NOTES),
        t.make(TABLES[3], "Memory saved", rows.savings(cells), columns.saved(), notes.SAVED_NOTES),
        t.make(TABLES[4], "Times with and without sharding", each, time_columns.times(), notes.TIME_NOTES),
        t.make(TABLES[5], "Sharded against unsharded", pairs, time_columns.speed(), notes.SPEED_NOTES),
        t.make(TABLES[6], "Beside ZeRO stage 1", rows.by_scheme(cells), columns.scheme(), notes.SCHEME_NOTES),
        t.make(TABLES[7], "Beside published figures", each, published.columns(each), notes.PUBLISHED_NOTES),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Memory by kind, and ratios of times."""
    memory = partial(drawings.memory, kinds=tables[TABLES[1]], prediction=tables[TABLES[2]])
    speed = partial(drawings.speed, rows=rows.keyed(tables[TABLES[5]].ok))
    draw = f.stacked(memory, speed, heights=(4.4, 3.4))
    return [f.Figure(FIGURES[0], drawings.CAPTION, draw, (7.0, 7.8), sample="sharded_step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The answers to the handout's questions, and how good the predictions are."""
    memory, kinds, prediction, saved, times, speed, zero, beside = (rows.keyed(tables[name].ok) for name in TABLES)
    return [
        find("cs336.sharding_memory", TABLES[:1], lambda: answers.memory(memory)),
        find("cs336.sharding_kinds", TABLES[1:2], lambda: answers.kinds(kinds)),
        find("cs336.sharding_prediction", TABLES[2:3], lambda: answers.prediction(prediction)),
        find("cs336.sharding_saved", TABLES[3:4], lambda: answers.saved(saved)),
        find("cs336.sharding_speed", TABLES[4:6], lambda: answers.speed(speed, times)),
        find("cs336.sharding_peer", TABLES[3:6], lambda: answers.peer(speed, saved, times)),
        find("cs336.sharding_zero", TABLES[6:7], lambda: answers.zero(zero)),
        find("cs336.sharding_published", (TABLES[7], TABLES[5]), lambda: published.answer(beside, speed)),
    ]
