"""The sentences about memory and traffic of sharding strategies, and what those about speed are made with."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.strategies.columns import STRATEGIES
from perfscribe.findings import counted, need, one_setting, spread_of
from perfscribe.parallel.fsdp_plan import HYBRID_SHARD, hybrid_mesh
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, MIB

ALLOWED = 0.05
OTHERS_MIB = 64  # the allocator's own rounding of blocks stays below it
SETTING = ("model", "dtype")


def size(gib: Any) -> str:
    """A figure in GiB, or in MiB where it is small."""
    value = float(gib)
    if value == 0:
        return "0 GiB"
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


def divides_nothing(row: pd.Series) -> bool:
    """Whether it is a hybrid of so few ranks that each holds a whole copy."""
    return row["strategy"] == STRATEGIES[HYBRID_SHARD] and hybrid_mesh(int(row["world_size"]))[1] == 1


def label(row: pd.Series) -> str:
    """A strategy's name, with what has to be known of it."""
    known = {"FSDP1": row["api"] == "FSDP1", "nothing divided": divides_nothing(row)}
    more = ", ".join(word for word, holds in known.items() if holds)
    return f"{row['strategy']} ({more})" if more else str(row["strategy"])


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


def handling(rows: pd.DataFrame, api: str, beside: str = "none") -> tuple[pd.Series, pd.Series] | None:
    """One rank with FULL_SHARD by this api, and with what it stands beside, the model alone or DDP: neither sends.

    None where one of the two was not measured.
    """
    one = base(rows[rows["world_size"].astype(int) == 1]) if len(rows) else rows
    others = one[one["api"] == beside] if len(one) else one
    if others.empty:
        return None
    other = others.iloc[0]
    same = one[(one["dtype"] == other["dtype"]) & (one["model"] == other["model"])]
    sharded = same[(same["api"] == api) & (same["strategy"] == "FULL_SHARD") & (same["sent_mb"].astype(float) == 0)]
    return None if sharded.empty else (sharded.iloc[0], other)


def longer(one: pd.Series, other: pd.Series, parts: int = 1) -> tuple[float, float]:
    """By how many ms a row's step is longer than another's, and how far that may be off; both of one of `parts`."""
    spreads = (spread_of(row, "step_ms") or 0.0 for row in (one, other))
    return (float(one["step_ms"]) - float(other["step_ms"])) / parts, sum(spreads) / parts


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
        f"{label(row)} {size(row['state_gib'])} (peak {size(row['peak_allocated_gib'])})"
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
    shown = [f"{label(row)} {format_figure(float(row['sent_mb']))} MB" for _, row in chosen.iterrows()]
    text = (
        f"Each rank of {chosen['world_size'].iloc[0]} sends in a step ({setting}): {', '.join(shown)}. "
        f"{_judged(errors, 'send', 'by the collectives that were seen')}"
    )
    return text, "confirmed" if errors.max() <= ALLOWED else "contradicted"
