"""The sentences about speed, memory and traffic of sharding strategies."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.findings import counted, need, one_setting
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


def in_doubt(rows: pd.DataFrame) -> str:
    """How many peaks are not to be trusted, as something held memory beside known plans; "" where none is."""
    held = pd.to_numeric(rows["others_mib"], errors="coerce").abs()
    if not (held > OTHERS_MIB).any():
        return ""
    cells = counted(int((held > OTHERS_MIB).sum()), "cell")
    return (
        f"In {cells} up to {size(held.max() * MIB / GIB)} of what lay on the GPU before the step are not accounted "
        "for, so that peaks there are in doubt."
    )


def handling(rows: pd.DataFrame, api: str) -> tuple[float, float, str] | None:
    """Step in ms of one rank with FULL_SHARD by this api and of the model alone, where neither sends; their dtype.

    None where one of the two was not measured.
    """
    one = base(rows[rows["world_size"].astype(int) == 1]) if len(rows) else rows
    alone = one[one["api"] == "none"] if len(one) else one
    if alone.empty:
        return None
    same = one[(one["dtype"] == alone["dtype"].iloc[0]) & (one["model"] == alone["model"].iloc[0])]
    sharded = same[(same["api"] == api) & (same["strategy"] == "FULL_SHARD") & (same["sent_mb"].astype(float) == 0)]
    if sharded.empty:
        return None
    return float(sharded["step_ms"].iloc[0]), float(alone["step_ms"].iloc[0]), str(alone["dtype"].iloc[0])


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
        f"Without off-load and checkpointing ({setting}), in samples/s: {', '.join(shown)}. "
        f"{' '.join(part for part in (_why(rows, plain), _costs(chosen)) if part)}"
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
        f"{', '.join(shown)}. {_judged(errors, 'take', where)} {in_doubt(rows)}"
    ).strip()
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
