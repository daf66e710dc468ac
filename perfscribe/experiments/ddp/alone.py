"""What the gradients' all-reduces take by themselves, by the lines that all_reduce measured."""

from __future__ import annotations

from collections.abc import Iterable

from perfscribe.experiments.all_reduce import fits
from perfscribe.experiments.all_reduce.fits import Line
from perfscribe.parallel.transport import DEFAULT
from perfscribe.records import Record

NO_LINE = "no line of all-reduces among as many"
OPERATION = "all_reduce"

Lines = dict[tuple[str, int], Line]


def lines(all_reduce: Iterable[Record]) -> Lines:
    """Latency and bandwidth of all-reduces over the links that the backend chose, by backend and number of ranks."""
    found: Lines = {}
    for key, line in fits.lines(all_reduce).items():
        operation, backend, _, transport, ranks, _ = key
        if (operation, transport) == (OPERATION, DEFAULT):
            found.setdefault((backend, ranks), line)
    return found


def time_ms(record: Record, known: Lines) -> float | str | None:
    """Of the calls of a step one after the other: a latency each, and their bytes; a text where there is no line."""
    if not record.ok:
        return None
    line = known.get((str(record.factors["backend"]), int(record.factors["world_size"])))
    if line is None:
        return NO_LINE
    calls = int(record.values["all_reduces"])
    return calls * line.time_ms(float(record.values["sent_bytes"]) / calls)
