"""The sentence about how fast sharding strategies are, and what off-load and activation checkpointing cost and save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from perfscribe.experiments.strategies.answers import SETTING, base, handling, label, largest, named
from perfscribe.findings import counted, from_to, one_setting
from perfscribe.statistics import format_figure
from perfscribe.training_answers import within_spread

PLAN = ("strategy", "api", "dtype", "offload", "checkpointing")
SWITCHES = {"offload": "CPU off-load", "checkpointing": "activation checkpointing"}
NAMED = 3  # plans that are named beside the fastest or slowest one; more are counted


def speed(rows: pd.DataFrame) -> str:
    """Which strategy is fastest as far as can be told, whether it beats one rank, and what each switch costs."""
    chosen = largest(rows)
    rates = chosen["samples_per_s"].astype(float)
    best, least = chosen.loc[rates.idxmax()], chosen.loc[rates.idxmin()]
    plain, setting = one_setting(base(chosen), SETTING)
    parts = (
        f"With {best['world_size']} ranks, of {len(chosen)} combinations {_end(chosen, best, 'fastest')}, "
        f"{_end(chosen, least, 'slowest')}.",
        f"Without off-load and checkpointing ({setting}), in samples/s: {_in_order(plain)}",
        _beside_one(rows, base(chosen)),
        _why(rows, plain),
        _costs(chosen),
    )
    return " ".join(part for part in parts if part)


def _end(rows: pd.DataFrame, end: pd.Series, word: str) -> str:
    """The fastest or slowest plan, and those that the spread of steps does not tell from it."""
    text = f"{named(end)} is {word} with {_rate(end)}{'' if word == 'slowest' else ' samples/s'}"
    near = [named(row) for at, row in rows.iterrows() if at != end.name and within_spread(end, row)]
    if not near:
        return text
    more = [] if len(near) <= NAMED else [f"{len(near) - NAMED} more"]
    return f"{text} (within its spread: {', '.join(near[:NAMED] + more)})"


def _rate(row: pd.Series) -> str:
    """Samples a second, and in brackets what was unusual while they were measured."""
    unusual = [flag.split(" (")[0] for flag in str(row["flags"]).split("; ") if flag]
    return format_figure(float(row["samples_per_s"])) + (f" ({', '.join(unusual)})" if unusual else "")


def _in_order(rows: pd.DataFrame) -> str:
    """Strategies from the fastest on, and which of them are as fast as the one before within the spread of steps."""
    order = [
        row for _, row in rows.sort_values("samples_per_s", key=lambda s: -s.astype(float), kind="stable").iterrows()
    ]
    text = f"{', '.join(f'{label(row)} {_rate(row)}' for row in order)}."
    same = [label(row) for before, row in pairwise(order) if within_spread(before, row)]
    if not same:
        return text
    return f"{text} Within the spread of the one before it: {', '.join(same)}."


def _beside_one(rows: pd.DataFrame, several: pd.DataFrame) -> str:
    """Whether one rank alone trains more samples than several do, without either switch; "" where none is slower."""
    one = base(rows[rows["world_size"].astype(int) == 1])
    alone = one[(one["api"] == "none") & (one["model"] == several["model"].iloc[0])]
    if alone.empty:
        return ""
    row = alone.iloc[0]
    slower = several[several["samples_per_s"].astype(float) < float(row["samples_per_s"])]
    if slower.empty:
        return ""
    many = f"all {len(several)}" if len(slower) == len(several) else f"{len(slower)} of the {len(several)}"
    return (
        f"The model alone on one rank ({row['dtype']}) trains {_rate(row)} samples/s, more than {many} combinations of "
        f"several ranks without either: with {counted(row['batch'], 'row')} of {row['seq_len']} tokens a rank, what "
        "wrapping and exchanging add to a step outweighs there what further ranks give."
    )


def _why(rows: pd.DataFrame, plain: pd.DataFrame) -> str:
    """How much of what FULL_SHARD takes longer than DDP is there without communication; "" where it is not longer."""
    found = handling(rows, "FSDP2")
    steps = {api: plain[plain["api"] == api] for api in ("DDP", "FSDP2")}
    full = steps["FSDP2"][steps["FSDP2"]["strategy"] == "FULL_SHARD"]
    if found is None or full.empty or steps["DDP"].empty or plain["dtype"].iloc[0] != found[2]:
        return ""
    sharded, alone, dtype = found
    longer = float(full["step_ms"].iloc[0]) - float(steps["DDP"]["step_ms"].iloc[0])
    if longer <= 0 or sharded <= alone:
        return ""
    return (
        f"One rank, which sends nothing, takes {format_figure(sharded)} ms a step with FULL_SHARD and "
        f"{format_figure(alone)} ms alone ({dtype}): {format_figure(sharded - alone)} ms are the handling of units and "
        f"the copies into them, not communication, where FULL_SHARD takes {format_figure(longer)} ms longer than DDP "
        f"with {plain['world_size'].iloc[0]} ranks."
    )


def _costs(rows: pd.DataFrame) -> str:
    """Time and peak with each switch over those without, over the pairs of cells that differ in it alone."""
    said = []
    for name, words in SWITCHES.items():
        pairs = _pairs(rows, name)
        if pairs:
            steps, peaks = (_over(pairs, value) for value in ("step_ms", "peak_allocated_gib"))
            said.append(
                f"with {words} a step takes {_median(steps)} as long{_not_told(pairs)} and {_median(peaks)} the memory "
                f"at its peak ({'' if len(pairs) == 1 else 'medians over '}{counted(len(pairs), 'pair')})"
            )
    return f"Against the same plan without: {'; '.join(said)}." if said else ""


def _pairs(rows: pd.DataFrame, switch: str) -> list[tuple[pd.Series, pd.Series]]:
    """The cells with the switch, each with the first one without it that is else alike."""
    others = [key for key in PLAN if key != switch]
    found = []
    for _, own in rows.groupby(others, sort=False):
        yes, no = (own[own[switch] == level] for level in ("yes", "no"))
        if len(yes) and len(no):
            found.append((yes.iloc[0], no.iloc[0]))
    return found


def _over(pairs: Sequence[tuple[pd.Series, pd.Series]], value: str) -> pd.Series:
    """With the switch over without, of each pair."""
    return pd.Series([float(yes[value]) / float(no[value]) for yes, no in pairs])


def _not_told(pairs: Sequence[tuple[pd.Series, pd.Series]]) -> str:
    """In how many pairs the spread of steps does not tell the two apart; "" where it tells all."""
    near = sum(within_spread(yes, no) for yes, no in pairs)
    if not near:
        return ""
    where = "" if len(pairs) == 1 else f" in {near} of {len(pairs)} pairs"
    return f" (within the spread of steps{where}: which is faster cannot be told)"


def _median(ratios: pd.Series) -> str:
    text = f"{format_figure(float(ratios.median()))} times"
    return f"{text} ({from_to(ratios)})" if len(ratios) > 1 else text
