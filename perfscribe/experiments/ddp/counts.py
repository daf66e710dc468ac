"""Bucket sizes by the number of buckets that they give: sizes that give as many are one program, measured again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from perfscribe.experiments.ddp.rows import TOO_FEW_TURNS, of_cells, turns
from perfscribe.records import Record
from perfscribe.statistics import format_figure, ratio

ITSELF, NO_OTHER = "itself", "none: one number of buckets"


def compared(rows: Iterable[Record]) -> list[Record]:
    """The rows of bucket sizes, with the step of each number of buckets against the number whose step is least."""
    return [one for group in of_cells(rows) for one in _against_least(group)]


def _against_least(group: Sequence[Record]) -> list[Record]:
    sizes: dict[int, list[Record]] = {}
    for row in group:
        if row.ok:
            sizes.setdefault(int(row.values["buckets"]), []).append(row)
    pooled = {count: _steps(own) for count, own in sizes.items()}
    least = min(pooled, key=lambda count: median(map(median, pooled[count])), default=None)
    return [
        replace(row, values={**row.values, **_against(int(row.values["buckets"]), least, pooled)}) if row.ok else row
        for row in group
    ]


def _steps(sizes: Sequence[Record]) -> list[list[float]]:
    """The steps of each turn, of all these sizes."""
    by_turn = zip(*(turns(row, "step_ms") for row in sizes), strict=True)
    return [[step for steps in of_turn for step in steps] for of_turn in by_turn]


def _against(count: int, least: int | None, pooled: dict[int, list[list[float]]]) -> dict[str, Any]:
    if least is None or len(pooled) < 2:
        return _named(NO_OTHER, NO_OTHER, NO_OTHER)
    if count == least:
        return _named(ITSELF, ITSELF, ITSELF)
    found = ratio(pooled[least], pooled[count])
    if found.low is None or found.high is None:
        return _named(found.ratio, TOO_FEW_TURNS, found.verdict)
    interval = f"{format_figure(found.low)} to {format_figure(found.high)}"
    return _named(found.ratio, interval, found.verdict) | {"least_ratio_spread": (found.high - found.low) / 2}


def _named(of: Any, interval: str, verdict: str) -> dict[str, Any]:
    named = {"least_ratio": of, "least_interval": interval, "least_verdict": verdict}
    return named | {"least_ratio_spread": interval}
