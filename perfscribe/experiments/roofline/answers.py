"""The sentence on what bounds attention and the models."""

from __future__ import annotations

import pandas as pd

from perfscribe.experiments.roofline.rows import EAGER, FUSED, STEP
from perfscribe.findings import CannotTell, counted, from_to, need, shown, shown_from_to


def bounds(rows: pd.DataFrame) -> str:
    """Of each kind of work: how many rows which ceiling bounds, over which intensities, what share is reached."""
    need(rows, 1, "passes")
    known = rows[pd.to_numeric(rows["share_percent"], errors="coerce").notna()]
    if known.empty:
        raise CannotTell("neither measured nor printed ceilings are known for this device")
    parts = [_kind(group, kind) for kind in (STEP, EAGER, FUSED) if not (group := known[known["work"] == kind]).empty]
    return " ".join(parts)


def _width(row: pd.Series) -> str:
    return "" if row["work"] == STEP else f", d {row['head_dim']}"


def _kind(rows: pd.DataFrame, kind: str) -> str:
    told = []
    for by, group in rows.groupby("bound_by", sort=False):
        numbers = group.astype({"intensity": float, "share_percent": float, "ridge": float})
        top = numbers.loc[numbers["share_percent"].idxmax()]
        most = shown(top, "share_percent")
        told.append(
            f"{counted(len(group), 'row')} bound by {by} ({from_to(numbers['intensity'])} FLOP/byte), of which they "
            f"reach {shown_from_to(numbers, 'share_percent')} %, most {top['name']}, {top['pass']}, in "
            f"{top['dtype']} at length {top['seq_len']}{_width(top)} ({most} %)"
        )
    return f"{kind[0].upper()}{kind[1:]}: {'; '.join(told)}."
