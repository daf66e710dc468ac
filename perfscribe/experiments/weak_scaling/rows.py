"""The rows of weak_scaling: a cell for each variant that it stands for, with what the set-up asks of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfscribe.counters.weak_scaling import SOURCE, VARIANTS, Setup
from perfscribe.models.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.records import Record
from perfscribe.training_prediction import Links
from perfscribe.training_rows import nearest, predicted_row, with_figures

SHAPE = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")


def by_variant(records: Sequence[Record]) -> list[Record]:
    """Rows by backend, then variant, in the order of ranks."""
    found = [
        replace(record, factors={**record.factors, "variant": variant})
        for record in records
        for variant in str(record.factors["variants"]).split("; ")
    ]
    backends = list(dict.fromkeys(_grid(record) for record in records))

    def place(record: Record) -> tuple[int, int, int]:
        return (
            backends.index(_grid(record)),
            VARIANTS.index(record.factors["variant"]),
            record.factors["world_size"],
        )

    return sorted(found, key=place)


def set_ups(records: Sequence[Record]) -> list[Record]:
    """The same rows as arithmetic has them: all there, whatever was measured of them."""
    return [
        replace(record, status="ok", reason="", flags=[], samples={}, warmup={}, values={}, series={})
        for record in by_variant(records)
    ]


def _grid(record: Record) -> tuple[Any, ...]:
    """What the rows of one grid have in common: cells of another preset are another grid."""
    names = ("backend", "loop", "hidden_size", "vocab_size", "dtype")
    return tuple(record.factors[name] for name in names)


def measured(records: Sequence[Record], links: Links) -> list[Record]:
    """Each row beside the first measured one of its variant, and predicted ones behind those that could not be."""
    every, found = by_variant(records), []
    for record in every:
        same = [
            r for r in every if r.ok and (_grid(r), r.factors["variant"]) == (_grid(record), record.factors["variant"])
        ]
        base = min(same, key=lambda r: r.factors["world_size"], default=None)
        found.append(with_figures(record, base, links))
        source = nearest(record, same, links)
        if not record.ok and base is not None and source is not None:
            found += predicted_row(record, base, source, links)
    return found


def setup_of(record: Record) -> Setup:
    """The row's set-up."""
    factors = record.factors
    shape = SimpleGptShape(**{name: factors[name] for name in SHAPE})
    return Setup(factors["variant"], factors["world_size"], factors["batch_size"], shape, factors["max_length"])


def as_it_ran(record: Record) -> Setup:
    """The row as the workshop's scripts ran it: the tokenizer's vocabulary, and one row a GPU at once."""
    asked = setup_of(record)
    return replace(asked, batch=1, shape=replace(asked.shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY))


def is_source(record: Record) -> bool:
    """Whether the row is the workshop's own."""
    return bool(record.factors["variant"] == SOURCE)
