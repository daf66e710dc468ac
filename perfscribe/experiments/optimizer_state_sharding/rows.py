"""The rows of optimizer_state_sharding's tables, from one record a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe.counters.parameters import transformer_tensors
from perfscribe.counters.sharding import Scheme, schemes
from perfscribe.experiments.optimizer_state_sharding.names import (
    AGAIN,
    BEFORE_STEP,
    IMPLEMENTATIONS,
    PASSES,
    PEER,
    SHARDED,
    STEP,
    UNSHARDED,
)
from perfscribe.in_turns import split
from perfscribe.models.shapes import SIZES
from perfscribe.records import Record
from perfscribe.statistics import Ratio, format_figure, ratio

NAMES = {UNSHARDED: "AdamW, unsharded", SHARDED: "sharded (ours)", PEER: "sharded (torch's ZeRO optimizer)"}
MOMENT_NAMES = {
    PASSES: "peak of forward, backward, averaging",
    BEFORE_STEP: "directly before the step",
    STEP: "peak of the optimizer step",
}
TIMES = ("step", "optimizer")
TIME_NAMES = {"step": "whole step", "optimizer": "optimizer step alone"}
TOO_FEW_TURNS = "too few turns"


def keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table with the words for optimizers, moments and times turned back into their names here."""
    words = {"implementation": NAMES, "moment": MOMENT_NAMES, "timed": TIME_NAMES}
    back = {column: {shown: name for name, shown in names.items()} for column, names in words.items()}
    return rows.assign(**{column: rows[column].map(back[column]) for column in back if column in rows.columns})


def by_implementation(records: Iterable[Record]) -> list[Record]:
    """A row for each optimizer of a cell, its samples and series under their own names."""
    return [_part(record, name) for record in records for name in IMPLEMENTATIONS]


def _part(record: Record, name: str) -> Record:
    def own(held: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{name}_"
        others = tuple(f"{other}_" for other in (*IMPLEMENTATIONS, AGAIN) if other != name)
        return {
            key.removeprefix(prefix): value
            for key, value in held.items()
            if not key.startswith(others) or key.startswith(prefix)
        }

    return replace(
        record,
        factors={**record.factors, "implementation": name},
        samples=own(record.samples),
        series=own(record.series),
        values=own(record.values),
        timers=own(record.timers),
    )


def by_moment(records: Iterable[Record]) -> list[Record]:
    """A row for each optimizer of a cell and each moment at which memory is broken down."""
    return [
        replace(record, factors={**record.factors, "moment": moment})
        for record in by_implementation(records)
        for moment in MOMENT_NAMES
    ]


def savings(records: Iterable[Record]) -> list[Record]:
    """A row for each sharded optimizer of a cell and each of those moments, with what the plain one held then."""
    found = []
    for record in records:
        plain = {moment: record.series.get(f"{UNSHARDED}_{moment}_bytes") for moment in MOMENT_NAMES}
        for row in by_moment([record]):
            if row.factors["implementation"] != UNSHARDED:
                held = plain[row.factors["moment"]]
                values = row.values | ({"unsharded_bytes": sum(held)} if held else {})
                found.append(replace(row, values=values))
    return found


def comparisons(records: Iterable[Record]) -> list[Record]:
    """A row for each sharded optimizer of a cell and each time, with its ratio to the plain one's over turns."""
    return [
        replace(
            record,
            factors={**record.factors, "implementation": name, "timed": time},
            values=_ratio(record, name, time) if record.ok else {},
            samples={"time_ms": record.samples[f"{name}_{time}_ms"]} if record.ok else {},
        )
        for record in records
        for name in (SHARDED, PEER)
        for time in TIMES
    ]


def _ratio(record: Record, name: str, time: str) -> dict[str, Any]:
    plain, other, again = (_turns(record, f"{variant}_{time}_ms") for variant in (UNSHARDED, name, AGAIN))
    return _named(ratio(plain, other, again)) | {"turns": len(plain)}


def _turns(record: Record, sample: str) -> list[list[float]]:
    """The samples of each turn, of all rounds."""
    turns = int(record.factors["turns"])
    return [turn for samples in record.samples[sample] for turn in split(list(samples), turns)]


def _named(found: Ratio) -> dict[str, Any]:
    named: dict[str, Any] = {"ratio": found.ratio, "verdict": found.verdict}
    if found.low is None or found.high is None:
        return named | dict.fromkeys(("interval", "low", "high", "ratio_spread", "self_percent"), TOO_FEW_TURNS)
    named |= {"interval": f"{format_figure(found.low)} to {format_figure(found.high)}"}
    named |= {"low": found.low, "high": found.high, "ratio_spread": (found.high - found.low) / 2}
    return named | {"self_percent": 100 * (found.aa_spread or 0.0)}


def by_scheme(records: Sequence[Record]) -> list[Record]:
    """A row for each size, number of processes and way to divide the work, with what it costs by arithmetic."""
    seen: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        seen.setdefault((record.factors["size"], record.factors["world_size"]), []).append(record)
    found = []
    for (size, ranks), cells in seen.items():
        # Arithmetic needs no GPU, but a row stands for cells that were measured, or says why none was.
        chosen = next((cell for cell in cells if cell.ok), cells[0])
        for scheme in schemes(SIZES[size], ranks):
            values = _scheme(scheme, chosen) if chosen.ok else {}
            found.append(replace(chosen, factors={**chosen.factors, "scheme": scheme.name}, values=values))
    return found


def _scheme(scheme: Scheme, record: Record) -> dict[str, Any]:
    weights = 4 * sum(transformer_tensors(SIZES[record.factors["size"]]))
    return {
        **vars(scheme),
        "held_bytes": 2 * weights + scheme.state_bytes,
        "sent_bytes": scheme.gradient_bytes + scheme.parameter_bytes,
        "messages": scheme.gradient_messages + scheme.parameter_messages,
        "averaged_bytes": record.values["gradient_bytes"],
        "weights_bytes": weights,
    }
