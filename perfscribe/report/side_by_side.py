"""Cells that were measured at the same time on one machine, as several jobs of one GPU each are: found by the times in
their records, told in the report."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence

from perfscribe.records.records import Record
from perfscribe.show.provenance import node_name


def _span(record: Record) -> tuple[float, float] | None:
    """Seconds in which its first round was surely under way; None where the record does not tell."""
    time, window_s = record.provenance.get("time"), record.watch.get("window_s")
    if not time or window_s is None:
        return None
    ended = datetime.datetime.fromisoformat(str(time))
    known_to_s = 0.0 if ended.microsecond else 1.0  # older records give the time to the second that had begun
    begin_s = ended.timestamp() + known_to_s - float(window_s)
    return (begin_s, ended.timestamp()) if begin_s < ended.timestamp() else None


def beside(records: Mapping[str, Sequence[Record]]) -> dict[str, tuple[int, list[str]]]:
    """Of each experiment with such cells: how many were measured while others were, and of which experiments these are.

    records: by experiment. Of a cell of several rounds the first counts. Cells of one job follow each other.
    """
    spans = sorted(
        (span, name, number, node_name(record.provenance))
        for name, cells in records.items()
        for number, record in enumerate(cells)
        if (span := _span(record)) is not None
    )
    others: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for place, ((_, end_s), name, cell, node) in enumerate(spans):
        for (begin_s, _), other, its, its_node in spans[place + 1 :]:
            if begin_s >= end_s:
                break
            if node == its_node:
                others[name][cell].add(other)
                others[other][its].add(name)
    return {
        name: (len(others[name]), sorted(set().union(*others[name].values()))) for name in records if name in others
    }


def sentence(records: Mapping[str, Sequence[Record]]) -> str:
    """Which cells were measured beside which; empty where all were alone."""
    told = []
    for name, (count, others) in beside(records).items():
        names = ", ".join("other cells of it" if other == name else f"`{other}`" for other in others)
        told.append(f"`{name}` {count} of {len(records[name])} cells beside {names}")
    if not told:
        return ""
    return (
        f"Measured at the same time on one machine: {'; '.join(told)}. Such jobs have GPUs and cores of their own and "
        "share the host's memory and its disk."
    )
