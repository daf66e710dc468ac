"""The figures that speak for the cells of two sites, as plain data: for pages that show a few of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscribe.comparing import headlines, sides
from perfscribe.comparing.compared import Comparison, Row, compare


def between(root: Path, a: str, b: str) -> list[dict[str, Any]]:
    """of() for two sites below root, B against A; ValueError where a name is none."""
    return of(compare(sides.read(root, a), sides.read(root, b)))


def of(made: Comparison) -> list[dict[str, Any]]:
    """One row a cell that both sides measured.

    experiment, factors, figure, kind; a, b: medians, in the figure's own unit; ratio: B over A; low, high: its 95 %
    interval, None where there is none; over: what the interval is over; verdict: on B; reason; marks. None, too, where
    a figure is refused.
    """
    return [_plain(row) for row in headlines.rows(made)]


def _plain(row: Row) -> dict[str, Any]:
    judged = row.found
    names = ("a", "b", "ratio", "low", "high", "over")
    return {
        "experiment": row.experiment,
        "factors": dict(row.factors),
        "figure": row.name,
        "kind": row.kind,
        **{name: getattr(judged, name) if judged else None for name in names},
        "verdict": row.verdict,
        "reason": row.reason,
        "marks": list(row.marks),
    }
