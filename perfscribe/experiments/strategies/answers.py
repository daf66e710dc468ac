"""The sentences about speed, memory and traffic of sharding strategies."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.findings import need, one_setting
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, MIB

PLAN = ("strategy", "api", "dtype", "offload", "checkpointing")
ALLOWED = 0.05
OTHERS_MIB = 64  # the allocator's own rounding of blocks stays below it
SETTING = ("model", "dtype")


def size(gib: Any) -> str:
    """A figure in GiB, or in MiB where it is small."""
    value = float(gib)
    return f"{format_figure(value)} GiB" if abs(value) >= 0.1 else f"{format_figure(value * GIB / MIB)} MiB"


def base(rows: pd.DataFrame) -> pd.DataFrame:
    """Without off-load and checkpointing."""
    return rows[(rows["offload"] == "no") & (rows["checkpointing"] == "no")] if len(rows) else rows


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of the most ranks, of which there have to be several."""
    several = rows[rows["world_size"].astype(int) > 1] if len(rows) else rows
    need(several, 1, "cells of several ranks")
    return several[several["world_size"] == several["world_size"].max()]


def named(row: pd.Series) -> str:
    """A plan in words."""
    by = f" ({row['api']})" if row["api"] == "FSDP1" else ""
    more = [name for key, name in (("offload", "off-load"), ("checkpointing", "checkpointing")) if row[key] == "yes"]
    return f"{row['strategy']}{by} in {row['dtype']}" + (f" with {' and '.join(more)}" if more else "")


def speed(rows: pd.DataFrame) -> str:
    """Which strategy is fastest, and what each factor costs there."""
    chosen = largest(rows)
    rates = chosen["samples_per_s"].astype(float)
    best, least = chosen.loc[rates.idxmax()], chosen.loc[rates.idxmin()]
    ranks = best["world_size"]
    plain, setting = one_setting(base(chosen), SETTING)
    shown = [
        f"{row['strategy']}{' (FSDP1)' if row['api'] == 'FSDP1' else ''} {format_figure(float(row['samples_per_s']))}"
        for _, row in plain.sort_values("samples_per_s", key=lambda s: -s.astype(float)).iterrows()
    ]
    return (
        f"With {ranks} ranks, of {len(chosen)} combinations {named(best)} is fastest with "
        f"{format_figure(rates.max())} samples/s, {named(least)} slowest with {format_figure(rates.min())}. "
        f"Without off-load and checkpointing ({setting}), in samples/s: {', '.join(shown)}. {_costs(chosen)}"
    ).strip()


def _costs(rows: pd.DataFrame) -> str:
    """Median ratio of time of each switch, over the pairs of cells that differ in it alone."""
    said = []
    for name, words in (("offload", "CPU off-load"), ("checkpointing", "activation checkpointing")):
        others = [key for key in PLAN if key != name]
        pairs = rows.pivot_table(index=others, columns=name, values="samples_per_s", aggfunc="first").dropna()
        if {"no", "yes"} <= set(pairs.columns) and len(pairs):
            ratio = (pairs["no"].astype(float) / pairs["yes"].astype(float)).median()
            said.append(f"{words} {format_figure(ratio)} times (median of {_several(len(pairs), 'pair')})")
    return f"A step takes with {', with '.join(said)} the time that it takes without." if said else ""


def _several(number: Any, noun: str) -> str:
    return f"{number} {noun}" if int(number) == 1 else f"{number} {noun}s"


def _judged(errors: pd.Series, take: str, where: str) -> str:
    """How far cells are from their prediction, relatively."""
    if errors.max() == 0:
        return f"In all {len(errors)} cells ranks {take} what was predicted, to the byte."
    return f"Over {len(errors)} cells the prediction is off by at most {100 * errors.max():.2g} % ({where})."


def memory(rows: pd.DataFrame) -> tuple[str, str]:
    """State of each strategy against the prediction."""
    need(rows, 1, "cells")
    errors = (rows["state_gib"].astype(float) / rows["state_predicted_gib"].astype(float) - 1).abs()
    worst = rows.loc[errors.idxmax()]
    chosen, setting = one_setting(base(largest(rows)), SETTING)
    shown = [
        f"{row['strategy']}{' (FSDP1)' if row['api'] == 'FSDP1' else ''} {size(row['state_gib'])} "
        f"(peak {size(row['peak_allocated_gib'])})"
        for _, row in chosen.iterrows()
    ]
    where = f"{named(worst)}, {_several(worst['world_size'], 'rank')}"
    text = (
        f"Parameters, gradients and optimizer state a rank with {chosen['world_size'].iloc[0]} ranks ({setting}): "
        f"{', '.join(shown)}. {_judged(errors, 'take', where)}"
    )
    return text, "confirmed" if errors.max() <= ALLOWED else "contradicted"


def traffic(rows: pd.DataFrame) -> tuple[str, str]:
    """Bytes seen against bytes predicted."""
    several = rows[rows["world_size"].astype(int) > 1] if len(rows) else rows
    need(several, 1, "cells of several ranks")
    errors = (several["sent_mb"].astype(float) / several["sent_predicted_mb"].astype(float) - 1).abs()
    chosen, setting = one_setting(base(largest(rows)), SETTING)
    shown = [
        f"{row['strategy']}{' (FSDP1)' if row['api'] == 'FSDP1' else ''} {format_figure(float(row['sent_mb']))} MB"
        for _, row in chosen.iterrows()
    ]
    text = (
        f"Each rank of {chosen['world_size'].iloc[0]} sends in a step ({setting}): {', '.join(shown)}. "
        f"{_judged(errors, 'send', 'by the collectives that were seen')}"
    )
    return text, "confirmed" if errors.max() <= ALLOWED else "contradicted"
