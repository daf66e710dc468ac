"""The sentence about how fast sharding strategies are, and what off-load and activation checkpointing cost and save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from perfscribe.experiments.strategies.answers import SETTING, base, handling, label, largest, longer, named
from perfscribe.findings import counted, from_to, one_setting, shown, spread_of
from perfscribe.statistics import format_figure
from perfscribe.training_answers import within_spread

PLAN = ("strategy", "api", "dtype", "offload", "checkpointing")
SWITCHES = {"offload": "CPU off-load", "checkpointing": "activation checkpointing"}
NAMED = 3  # plans that are named beside the fastest or slowest one; more are counted


def speed(rows: pd.DataFrame, variants: pd.DataFrame) -> str:
    """Which strategy is fastest as far as can be told, whether it beats one rank, and what each switch costs.

    variants: of wrapping and prefetching, which took turns in a launch of their own.
    """
    chosen = largest(rows)
    rates = chosen["samples_per_s"].astype(float)
    best, least = chosen.loc[rates.idxmax()], chosen.loc[rates.idxmin()]
    plain, setting = one_setting(base(chosen), SETTING)
    parts = (
        f"With {best['world_size']} ranks, of {len(chosen)} combinations {_end(chosen, best, 'fastest')}, "
        f"{_end(chosen, least, 'slowest')}.",
        _as_one_unit(variants, best),
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
    return f"{text} (the spread of steps does not tell it from {', '.join(near[:NAMED] + more)})"


def _as_one_unit(variants: pd.DataFrame, best: pd.Series) -> str:
    """What FULL_SHARD trains as one unit, since all that is sharded here is wrapped per block; "" where unknown."""
    if variants.empty:
        return ""
    same = (variants["model"] == best["model"]) & (variants["world_size"] == best["world_size"])
    whole = variants[same & (variants["wrapping"] != "per block")]
    if whole.empty:
        return ""
    said = " and ".join(f"{shown(row, 'samples_per_s')} by {row['api']}" for _, row in whole.iterrows())
    return (
        f"What is sharded is wrapped per block there: as one unit FULL_SHARD trains, in samples/s, {said} "
        f"({whole['dtype'].iloc[0]}; of a launch of its own, told under wrapping and prefetching)."
    )


def _rate(row: pd.Series) -> str:
    """Samples a second, and in brackets what was unusual while they were measured."""
    unusual = [flag.split(" (")[0] for flag in str(row["flags"]).split("; ") if flag]
    return shown(row, "samples_per_s") + (f" ({', '.join(unusual)})" if unusual else "")


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
    near = several[[_near_in_rate(row, other) for _, other in several.iterrows()]]
    rest = several.drop(near.index)
    slower = rest[rest["samples_per_s"].astype(float) < float(row["samples_per_s"])]
    if slower.empty and near.empty:
        return ""
    text = f"The model alone on one rank ({row['dtype']}) trains {_rate(row)} samples/s"
    many = f"all {len(several)}" if len(slower) == len(several) else f"{len(slower)} of the {len(several)}"
    if len(slower):
        text += f", more than {many} combinations of several ranks without either"
    if len(near):
        of = "further" if len(slower) else f"of the {len(several)} combinations of several ranks without either"
        text += f"; the spread of steps does not tell {len(near)} {of} from it"
    return (
        f"{text}: with {counted(row['batch'], 'row')} of {row['seq_len']} tokens a rank, what "
        f"wrapping and exchanging add to a step {'outweighs' if len(slower) else 'takes up'} there what further ranks "
        "give."
    )


def _near_in_rate(one: pd.Series, other: pd.Series) -> bool:
    """Whether two rates differ by no more than the larger of what the spread of steps makes of them."""
    spread = max(spread_of(row, "samples_per_s") or 0.0 for row in (one, other))
    return abs(float(one["samples_per_s"]) - float(other["samples_per_s"])) <= spread


def _why(rows: pd.DataFrame, plain: pd.DataFrame) -> str:
    """How much of what FULL_SHARD takes longer than DDP is there without communication; "" where it is not longer."""
    found = handling(rows, "FSDP2", beside="DDP")
    steps = {api: plain[plain["api"] == api] for api in ("DDP", "FSDP2")}
    full = steps["FSDP2"][steps["FSDP2"]["strategy"] == "FULL_SHARD"]
    if found is None or full.empty or steps["DDP"].empty or plain["dtype"].iloc[0] != found[1]["dtype"]:
        return ""
    here, apart = longer(*found), longer(full.iloc[0], steps["DDP"].iloc[0])
    if min(here[0], apart[0]) <= 0:
        return ""
    ranks, dtype = plain["world_size"].iloc[0], found[1]["dtype"]
    return (
        f"FULL_SHARD takes {format_figure(*apart)} ms a step longer than DDP with {ranks} ranks, and "
        f"{format_figure(*here)} ms with one ({dtype}), which sends nothing: so much is the handling of units and the "
        "copies into them, not communication."
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
