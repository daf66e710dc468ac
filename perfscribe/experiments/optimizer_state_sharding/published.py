"""What sources print of sharding, beside ours and in a sentence."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe import tables as t
from perfscribe.experiments.optimizer_state_sharding.answers import SETTING, WHOLE_STEP, ratios_range
from perfscribe.experiments.optimizer_state_sharding.columns import MOMENT_TITLES, factors, held_column, implementation
from perfscribe.experiments.optimizer_state_sharding.names import (
    AFTER_STEP,
    BEFORE_STEP,
    INIT,
    PASSES,
    SHARDED,
    STEP,
    UNSHARDED,
)
from perfscribe.experiments.optimizer_state_sharding.predictions import ALLOWED_ERROR
from perfscribe.findings import CannotTell, shown
from perfscribe.records import Record

SOURCES = ("brandon-snider", "damek", "kesavanramakrishnan")
# What a source prints: the peak of the stretch before each moment, or what is allocated at it.
OF_PEAKS = {"brandon-snider": True, "damek": False, "kesavanramakrishnan": False}
PUBLISHED = {
    "memory_after_init_gib": (INIT, INIT),
    "memory_before_step_gib": (PASSES, BEFORE_STEP),
    "memory_after_step_gib": (STEP, AFTER_STEP),
}


@cache
def _known() -> tuple[references.Reference, ...]:
    return tuple(references.load("optimizer_state_sharding"))


def columns(rows: list[Record]) -> list[t.Column]:
    """Ours and, behind each, what sources print for the same levels; sources without any such figure are left out."""
    found: list[t.Column] = []
    for source in SOURCES:
        for metric, of in PUBLISHED.items():
            moment = of[0] if OF_PEAKS[source] else of[1]
            if _gives(source, metric, rows):
                title = MOMENT_TITLES[moment].removesuffix(" (GiB)")
                found += [held_column(moment), _published(source, metric, f"{title}, {source} (GiB)")]
    step = [
        _published(source, "step_ms", f"Step, {source} (ms)") for source in SOURCES if _gives(source, "step_ms", rows)
    ]
    return [*factors(), implementation(), *_once(found), t.median("step_ms", "Step (ms)"), *step]


def _once(columns: list[t.Column]) -> list[t.Column]:
    return list({column.name: column for column in columns}.values())


def _gives(source: str, metric: str, rows: list[Record]) -> bool:
    return any(references.of_source(_known(), source, metric, row.factors) for row in rows)


def _published(source: str, metric: str, title: str) -> t.Column:
    def get(record: Record) -> Any:
        found = references.of_source(_known(), source, metric, record.factors)
        return "none" if found is None else found.shown

    return t.Column(f"{metric}_{source}", title, get, kind="published", exact=True)


def answer(rows: pd.DataFrame, speed: pd.DataFrame) -> tuple[str, str]:
    """Our figures over published ones of the same levels; speed: sharded over unsharded, turn by turn."""
    parts, far, judged = [], [], False
    for source, of_peaks in OF_PEAKS.items():
        for metric, moments in PUBLISHED.items():
            moment = moments[0] if of_peaks else moments[1]
            ratios = _published_ratios(rows, f"{metric}_{source}", f"{moment}_gib")
            if not ratios.empty:
                title = MOMENT_TITLES[moment].removesuffix(" (GiB)")
                named = f"memory ({title[0].lower()}{title[1:]})"
                parts.append(f"{named} is {ratios_range(ratios)} of {source}'s")
                judged = True
                far += [named] if ((ratios - 1).abs() > ALLOWED_ERROR).any() else []
        parts += _published_times(rows, speed, source)
    if not parts:
        raise CannotTell("no published figure has the levels of a measured cell")
    text = f"Ours beside published figures of the same levels: {'; '.join(parts)}.{_far(far)}"
    if not judged:
        return text, "cannot tell"
    return text, "contradicted" if far else "confirmed"


def _far(far: list[str]) -> str:
    """What contradicts, and why it may."""
    if not far:
        return ""
    return (
        f" More than {ALLOWED_ERROR:.0%} apart: {', '.join(far)}. At its peak the step holds AdamW's temporaries, "
        "which differ from one implementation of AdamW to another."
    )


def _published_ratios(rows: pd.DataFrame, published: str, ours: str) -> pd.Series:
    """Ours over published, where there is a published figure."""
    claims = pd.to_numeric(rows[published], errors="coerce").dropna() if published in rows.columns else pd.Series()
    return rows.loc[claims.index, ours].astype(float) / claims if len(claims) else pd.Series(dtype=float)


def _published_times(rows: pd.DataFrame, speed: pd.DataFrame, source: str) -> list[str]:
    """Sharded over unsharded step: here by turns, with the verdict of these, and there."""
    column, cell = f"step_ms_{source}", [*SETTING, "world_size"]
    if column not in rows.columns:
        return []
    own = speed[(speed["implementation"] == SHARDED) & (speed["timed"] == WHOLE_STEP)].set_index(cell)
    found = []
    for levels, group in rows.groupby(cell, sort=False):
        there = pd.to_numeric(group.set_index("implementation")[column], errors="coerce")
        there = there.reindex([SHARDED, UNSHARDED])
        if there.notna().all() and levels in own.index:
            here = own.loc[[levels]].iloc[0]
            found.append(
                f"the sharded step takes {shown(here, 'ratio')}× the unsharded one's time here "
                f"({here['verdict']}) and {there[SHARDED] / there[UNSHARDED]:.3g}× at {source} (batch {levels[2]})"
            )
    return found
