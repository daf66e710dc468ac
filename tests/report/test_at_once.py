"""Cells that were measured at the same time: found by the times in their records."""

from __future__ import annotations

from typing import Any

from perfscribe.records.records import Record
from perfscribe.report import side_by_side


def cell(experiment: str, ended: str, window_s: float | None = 10.0, **provenance: Any) -> Record:
    """A cell that took ten seconds and ended at this time of one day."""
    told = {"time": f"2026-01-02T{ended}+00:00", "node": "a", **provenance}
    watch = {"window_s": window_s} if window_s else {}
    return Record(experiment, {}, "ok", "", "measured", provenance=told, watch=watch)


def test_overlapping_cells_are_counted_with_what_they_ran_beside() -> None:
    site = {
        "one": [cell("one", "10:00:10.5"), cell("one", "10:00:20.5")],
        "other": [cell("other", "10:00:12.5")],
        "alone": [cell("alone", "10:00:31.5"), cell("alone", "10:00:12.5", node="b")],
        "unknown": [Record("unknown", {}, "skipped", "", "measured"), cell("unknown", "10:00:12.5", window_s=None)],
    }
    assert side_by_side.beside(site) == {"one": (2, ["other"]), "other": (1, ["one"])}
    said = side_by_side.sentence(site)
    assert said.startswith(
        "Measured at the same time on one machine: `one` 2 of 2 cells beside `other`; `other` 1 of 1"
    )
    assert side_by_side.sentence({"alone": site["alone"]}) == ""


def test_times_to_the_second_tell_no_more_than_they_know() -> None:
    """Written down is the second that had begun, so that a cell's successor seems to begin before its end."""
    follows = {"one": [cell("one", "10:00:10"), cell("one", "10:00:12", 2.5)]}
    assert side_by_side.beside(follows) == {}
    overlap = {"one": [cell("one", "10:00:10"), cell("one", "10:00:12", 5.0)]}
    assert side_by_side.beside(overlap) == {"one": (2, ["one"])}
    assert side_by_side.beside({"one": [cell("one", "10:00:10", 0.5), cell("one", "10:00:10", 0.5)]}) == {}
