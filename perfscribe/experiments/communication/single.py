"""Rows of a single rank: whole trainings, and steps in each state of the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from perfscribe.experiments.communication.rows import TOO_FEW_TURNS, iqr_of_difference, turns
from perfscribe.records import Record
from perfscribe.statistics import ROUNDS_FOR_INTERVAL, format_figure, ratio

STATES = {
    "plain": "no profiler",
    "wait": "waiting",
    "warmup": "warming up",
    "active": "recording",
    "over": "done, still attached",
}
WHOLE = "a whole profile, its trace written"
TRAININGS = {"plain": "no", "first_profiled": "yes, the process's first profile", "profiled": "yes, a later profile"}


def alone(records: Iterable[Record]) -> list[Record]:
    """The cells of a single rank."""
    return [record for record in records if record.factors["part"] == "profiler"]


def trainings(records: Iterable[Record]) -> list[Record]:
    """One record a single-rank cell and way to train."""
    found = []
    for record in alone(records):
        for name, profiled in TRAININGS.items():
            row = replace(record, factors={**record.factors, "profiled": profiled}, samples={}, values={})
            if record.ok:
                row.samples["train_s"] = record.samples[f"{name}_train_s"]
                row.timers = {"train_s": record.timers.get(f"{name}_train_s", "host clock")}
                plain, own = turns(record, "plain_train_s"), turns(row, "train_s")
                trained = median(own)
                row.values["longer_s"] = "itself" if name == "plain" else trained - median(plain)
                row.values["longer_s_spread"] = "itself" if name == "plain" else iqr_of_difference(own, plain)
                row.values["epoch_s"] = trained / record.factors["epochs"]
            found.append(row)
    return found


def states(records: Iterable[Record]) -> list[Record]:
    """One record a single-rank cell and state of the profiler, against steps without it of the same turns."""
    return [_state(record, name) for record in alone(records) for name in (*STATES, "whole")]


def _state(record: Record, name: str) -> Record:
    whole = name == "whole"
    factors = {**record.factors, "state": WHOLE if whole else STATES[name]}
    row = replace(record, factors=factors, samples={}, values={})
    if not record.ok:
        return row
    row.samples["time_ms"] = record.samples["profile_ms" if whole else f"{name}_step_ms"]
    row.timers = {"time_ms": "host clock"}
    schedule = record.factors["wait"] + record.factors["warmup_steps"] + record.factors["active"]
    row.values["steps"] = schedule if whole else 1
    if name == "plain":
        row.values |= dict.fromkeys(("longer_ms", "against", "interval", "verdict"), "itself")
        return row
    own, plain = turns(row, "time_ms"), turns(record, "same_plain_ms" if whole else "plain_step_ms")
    # of the same two medians as the ratio beside it: a median of differences could have the other sign
    row.values["longer_ms"] = median(own) - median(plain)
    row.values["longer_ms_spread"] = iqr_of_difference(own, plain)
    return replace(row, values=row.values | _against(own, plain))


def _against(own: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    found = ratio([[one] for one in plain], [[one] for one in own])
    if len(own) < ROUNDS_FOR_INTERVAL or found.low is None or found.high is None:
        return {"against": found.ratio, "interval": TOO_FEW_TURNS, "verdict": "cannot tell"}
    interval = f"{format_figure(found.low)} to {format_figure(found.high)}"
    # an interval of a ratio reaches further up than down; the shorter side is how fine the ratio can be read
    fine = min(found.high - found.ratio, found.ratio - found.low)
    return {"against": found.ratio, "against_spread": fine, "interval": interval, "verdict": found.verdict}
