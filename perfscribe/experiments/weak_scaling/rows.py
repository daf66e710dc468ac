"""The rows of weak_scaling: a cell for each variant that it stands for, with what the set-up asks of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfscribe.analytic.weak_scaling import SOURCE, VARIANTS, Setup
from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.experiments.training_rows import Links, with_prediction
from perfscribe.records.records import Record

SHAPE = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")
GRID = ("backend", "loop", "hidden_size", "vocab_size", "dtype")  # cells of another preset are another grid
NOT_THE_WORKSHOPS = "not the workshop's"


def by_variant(records: Sequence[Record]) -> list[Record]:
    """Rows by grid, then variant, in the order of ranks."""
    found = [
        replace(record, factors={**record.factors, "variant": variant})
        for record in records
        for variant in str(record.factors["variants"]).split("; ")
    ]
    grids = list(dict.fromkeys(_grid(record) for record in records))

    def place(record: Record) -> tuple[int, int, int]:
        factors = record.factors
        return grids.index(_grid(record)), VARIANTS.index(factors["variant"]), factors["world_size"]

    return sorted(found, key=place)


def set_ups(records: Sequence[Record]) -> list[Record]:
    """The same rows as arithmetic has them: all there, whatever was measured of them."""
    return [
        replace(record, status="ok", reason="", flags=[], samples={}, warmup={}, values={}, series={})
        for record in by_variant(records)
    ]


def measured(records: Sequence[Record], links: Links) -> list[Record]:
    """Each row beside the first measured one of its variant, and predicted ones behind those that could not be."""
    every, found = by_variant(records), []
    for record in every:
        same = [one for one in every if one.ok and _grid(one) == _grid(record) and _variant(one) == _variant(record)]
        found += with_prediction(record, same, links)
    return found


def _grid(record: Record) -> tuple[Any, ...]:
    return tuple(record.factors[name] for name in GRID)


def _variant(record: Record) -> str:
    return str(record.factors["variant"])


def setup_of(record: Record) -> Setup:
    """The row's set-up."""
    factors = record.factors
    shape = SimpleGptShape(**{name: factors[name] for name in SHAPE})
    return Setup(factors["variant"], factors["world_size"], factors["batch_size"], shape, factors["max_length"])


def steps_per_epoch(record: Record) -> int:
    """As the text has it."""
    return -(-int(record.factors["train_size"]) // setup_of(record).total_batch)


def as_it_ran(record: Record, what: str) -> Any:
    """parameters, tflop and steps with the tokenizer's vocabulary and one row a GPU, as the workshop's scripts run;
    asked: TFLOP with that vocabulary and the batch that was asked for."""
    if _variant(record) != SOURCE:
        return NOT_THE_WORKSHOPS
    asked = setup_of(record)
    ran = replace(asked, batch=1, shape=replace(asked.shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY))
    return {
        "parameters": ran.shape.parameters,
        "tflop": ran.flop_per_gpu / 1e12,
        "steps": -(-record.factors["train_size"] // ran.total_batch),
        "asked": ran.flop_per_gpu * asked.batch / 1e12,
    }[what]
