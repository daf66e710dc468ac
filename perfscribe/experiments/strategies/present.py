"""Tables, figures and answers of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.strategies import (
    answers,
    claims,
    columns,
    drawings,
    effect_columns,
    notes,
    rows,
    speed,
)
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = (
    "fsdp.strategies",
    "fsdp.strategy_memory",
    "fsdp.strategy_wrapped",
    "fsdp.wrapping",
    "fsdp.world_of_one",
    "fsdp.units",
    "fsdp.offload_accumulation",
)
FIGURES = ("fsdp.strategies",)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Speed, state and traffic by plan; what took effect; wrapping; a world of one; parameters; summed gradients."""
    cells = records["strategies"]
    grid, turns, one = rows.grid(cells), rows.wrapping(cells), rows.world_of_one(cells)
    parts, sums = rows.counted(cells), rows.accumulation(cells)
    return [
        t.make(TABLES[0], "Sharding strategies", grid, columns.strategies(), notes.of_strategies(grid)),
        t.make(TABLES[1], "What a rank holds and gathers", grid, columns.memory(), notes.MEMORY_NOTES),
        t.make(TABLES[2], "What wrapped the model", grid, effect_columns.took_effect(), notes.WRAPPED_NOTES),
        t.make(TABLES[3], "Wrapping and prefetching", turns, effect_columns.wrapping(), notes.WRAPPING_NOTES),
        t.make(TABLES[4], "A world of one", one, effect_columns.world_of_one(), notes.ONE_NOTES),
        t.make(TABLES[5], "Parameters by part of the model", parts, columns.counted(), notes.COUNT_NOTES),
        t.make(TABLES[6], "Gradients of micro-batches", sums, columns.accumulation(), notes.ACCUMULATION_NOTES),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Speed and memory by strategy, and of wrapping and prefetching."""
    strategies = partial(drawings.strategies, rows=tables[TABLES[0]].ok)
    wrapping = partial(drawings.wrapping, rows=tables[TABLES[3]].ok)
    draw = f.stacked(strategies, wrapping, heights=(3.8, 3.2))
    return [f.Figure(FIGURES[0], drawings.CAPTION, draw, (7.4, 6.8), sample="step_ms")]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The answers to the workshop's questions, and to what it says."""
    grid, memory, _, turns, one, parts, sums = (tables[name].ok for name in TABLES)
    return [
        find("fsdp.strategy_speed", (TABLES[0], TABLES[3]), lambda: speed.speed(grid, turns)),
        find("fsdp.strategy_memory", TABLES[:1], lambda: answers.memory(grid)),
        find("fsdp.strategy_traffic", TABLES[:1], lambda: answers.traffic(grid)),
        find("fsdp.sharding_words", TABLES[1:2], lambda: claims.sharding_words(memory)),
        find("fsdp.wrapping", (TABLES[3], TABLES[0]), lambda: claims.wrapping(turns, grid)),
        find("fsdp.units", TABLES[5:6], lambda: claims.share(parts)),
        find("fsdp.world_of_one", TABLES[4:5], lambda: claims.world_of_one(one)),
        find("fsdp.offload", (TABLES[1], TABLES[6]), lambda: claims.offload(memory, sums)),
    ]
