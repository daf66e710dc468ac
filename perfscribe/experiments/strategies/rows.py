"""The rows of strategies' tables, from one record a cell, and what the counters predict for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from perfscribe.analytic.fsdp_memory import Load
from perfscribe.analytic.fsdp_plan import IMPLICIT, PER_BLOCK
from perfscribe.experiments.strategies.words import ACCUMULATION, GRID, WRAPPING, from_level, key_of, plan_of
from perfscribe.instruments.interleaving import split
from perfscribe.instruments.statistics import format_figure, ratio
from perfscribe.records.records import Record

COMPARED_WITH = {"wrapping": PER_BLOCK, "prefetch": IMPLICIT, "api": "fsdp2"}
TOO_FEW_TURNS = "too few turns"
NO_UNITS = "nothing to compare"


def grid(records: Iterable[Record]) -> list[Record]:
    """A row for each plan of the grid."""
    return [record for record in records if record.factors["part"] == GRID]


def world_of_one(records: Iterable[Record]) -> list[Record]:
    """Those of a single rank."""
    return [record for record in grid(records) if record.factors["world_size"] == 1]


def accumulation(records: Iterable[Record]) -> list[Record]:
    """A row for each way to add up micro-batches."""
    return [record for record in records if record.factors["part"] == ACCUMULATION]


def wrapping(records: Iterable[Record]) -> list[Record]:
    """A row for each variant of wrapping and prefetching, with its own samples and its ratio to the usual one."""
    cells = [record for record in records if record.factors["part"] == WRAPPING]
    return [_variant(record, one) for record in cells for one in from_level(record.factors["variants"])]


def _variant(record: Record, variant: dict[str, str]) -> Record:
    prefix, applied = f"{key_of(variant)}_", ("wrapper", "strategy", "replicas", "shards", "units", "collectives")
    values = {name.removeprefix(prefix): value for name, value in record.values.items() if name.startswith(prefix)}
    values |= {f"applied_{name}": values[name] for name in applied if name in values}
    values |= {"blocks": record.values["blocks"]} if "blocks" in record.values else {}
    own = f"{prefix}step_ms"
    return replace(
        record,
        factors={**record.factors, **variant},
        values=values | (_ratio(record, own) | _of_units(record, variant) if record.ok else {}),
        samples={"step_ms": _by_turns(record, own)} if own in record.samples else {},
        timers={"step_ms": record.timers[own]} if own in record.timers else {},
    )


def _by_turns(record: Record, sample: str) -> list[list[float]]:
    """The median of each turn, which the ratio is made of too: a step that is longer then has no ratio below 1."""
    if not record.ok:  # it may have ended within a turn
        return [list(samples) for samples in record.samples[sample]]
    turns = int(record.factors["turns"])
    return [[median(turn) for turn in split(list(samples), turns)] for samples in record.samples[sample]]


def _ratio(record: Record, sample: str) -> dict[str, Any]:
    """Time of the variant over that of the usual one, over turns."""
    names, usual = ("ratio", "interval", "verdict", "ratio_spread"), f"{key_of(COMPARED_WITH)}_step_ms"
    if usual not in record.samples:
        return dict.fromkeys(names, f"no {key_of(COMPARED_WITH)}")
    if sample == usual:
        return dict.fromkeys(names, "itself")
    found = ratio(_turns(record, usual), _turns(record, sample))
    named: dict[str, Any] = {"ratio": found.ratio, "verdict": found.verdict}
    if found.low is None or found.high is None:
        return named | dict.fromkeys(("interval", "ratio_spread"), TOO_FEW_TURNS)
    interval = f"{format_figure(found.low)} to {format_figure(found.high)}"
    return named | {"interval": interval, "ratio_spread": (found.high - found.low) / 2}


def _turns(record: Record, sample: str) -> list[list[float]]:
    turns = int(record.factors["turns"])
    return [turn for samples in record.samples[sample] for turn in split(list(samples), turns)]


def _of_units(record: Record, variant: dict[str, str]) -> dict[str, Any]:
    """Of a whole model its api's wrapping per block against it, over turns: what its further units do to a step."""
    others = [one for one in from_level(record.factors["variants"]) if one["api"] == variant["api"]]
    blocks = sorted(
        (one for one in others if one["wrapping"] == PER_BLOCK), key=lambda one: one["prefetch"] != variant["prefetch"]
    )
    samples = [f"{key_of(one)}_step_ms" for one in (variant, *blocks[:1])]
    if variant["wrapping"] == PER_BLOCK or len(samples) < 2 or not set(samples) <= set(record.samples):
        return {"units_verdict": NO_UNITS}
    return {"units_verdict": ratio(*(_turns(record, sample) for sample in samples)).verdict}


def load(record: Record) -> Load:
    """The record's model and plan, for the counters. KeyError: the record has no figures."""
    outside, block = (tuple(map(tuple, record.series[name])) for name in ("outside", "block"))
    return Load(outside, block, int(record.values["blocks"]), plan_of(record.factors), record.factors["world_size"])
