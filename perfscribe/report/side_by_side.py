"""Cells that were measured at the same time on one machine, as several jobs of one GPU each are: found by the times in
their records, told in the report."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfscribe.records.records import Record
from perfscribe.show.provenance import node_name


@dataclass(frozen=True)
class _Span:
    """Seconds in which a cell's first round was surely under way."""

    experiment: str
    cell: int
    begin_s: float
    end_s: float


def _span(experiment: str, cell: int, record: Record) -> _Span | None:
    """None where the record does not say when it was measured and for how long, or the time is too coarse to tell."""
    time, window_s = record.provenance.get("time"), record.watch[0].get("window_s") if record.watch else None
    if not time or window_s is None:
        return None
    ended = datetime.datetime.fromisoformat(str(time))
    known_to_s = 0.0 if ended.microsecond else 1.0  # older records give the time to the second that had begun
    end_s = ended.timestamp()
    begin_s = end_s + known_to_s - float(window_s)
    return _Span(experiment, cell, begin_s, end_s) if begin_s < end_s else None


def beside(records: Mapping[str, Sequence[Record]]) -> dict[str, tuple[int, list[str]]]:
    """Of each experiment with such cells: how many were measured while others were, and of which experiments these are.

    records: by experiment. Of a cell of several rounds the first counts. Cells of one job follow each other.
    """
    by_node: dict[str, list[_Span]] = defaultdict(list)
    for name, cells in records.items():
        for number, record in enumerate(cells):
            if (span := _span(name, number, record)) is not None:
                by_node[node_name(record.provenance)].append(span)
    cells_of: dict[str, set[int]] = defaultdict(set)
    others_of: dict[str, set[str]] = defaultdict(set)
    for spans in by_node.values():
        for one, other in _overlapping(spans):
            for own, its in ((one, other), (other, one)):
                cells_of[own.experiment].add(own.cell)
                others_of[own.experiment].add(its.experiment)
    return {name: (len(cells_of[name]), sorted(others_of[name])) for name in records if name in cells_of}


def _overlapping(spans: Iterable[_Span]) -> list[tuple[_Span, _Span]]:
    found, under_way = [], list[_Span]()
    for span in sorted(spans, key=lambda one: one.begin_s):
        under_way = [one for one in under_way if one.end_s > span.begin_s]
        found += [(one, span) for one in under_way]
        under_way.append(span)
    return found


def sentence(records: Mapping[str, Sequence[Record]]) -> str:
    """Which cells were measured beside which; empty where all were alone."""
    told = []
    for name, (count, others) in beside(records).items():
        names = ", ".join("others of its own" if other == name else f"`{other}`" for other in others)
        told.append(f"`{name}` {count} of {len(records[name])} cells beside {names}")
    if not told:
        return ""
    return (
        f"Measured at the same time on one machine: {'; '.join(told)}. Such jobs have GPUs and cores of their own and "
        "share the host's memory and its disk."
    )
