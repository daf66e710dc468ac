"""Figures over those of a base row: of the same workload, at other levels of the factors compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from perfscribe.instruments.statistics import Summary
from perfscribe.records.records import Record
from perfscribe.show import tables as t


def workload(record: Record, own: Collection[str]) -> tuple[Any, ...]:
    """What rows that are to be compared have in common: all factors but their own."""
    return tuple((name, level) for name, level in record.factors.items() if name not in own)


def base_of(cells: Iterable[Record], own: Collection[str], **base: Any) -> Callable[[Record], Record | None]:
    """Gives the ok cell of a record's workload that has the levels `base`; None where there is none."""
    known = {workload(record, own): record for record in cells if record.ok and record.has(**base)}
    return lambda record: known.get(workload(record, own))


def ratio(
    name: str,
    title: str,
    base: Callable[[Record], Record | None],
    missing: str,
    get: Callable[[Record], float],
    sample: str = "",
) -> t.Column:
    """A figure over the base's, no finer than that sample of both spreads; missing: the text where there is no base."""

    def found(record: Record) -> float | str:
        other = base(record)
        return missing if other is None else float(get(record) / get(other))

    def spread(record: Record) -> float | str:
        value, other = found(record), base(record)
        if isinstance(value, str) or other is None:
            return value
        return 0.0 if other is record else t.ratio_spread(value, *(t.summary(one, sample) for one in (record, other)))

    if not sample:
        return t.derived(name, title, found)
    return t.Column(name, title, found, spread=f"{name}_spread", spread_get=spread)


def apart(own: Summary, other: Summary) -> str:
    """Whether all of one's samples are on one side of all of the other's: a fact, no inference."""
    if own.maximum < other.minimum:
        return "all quicker"
    return "all slower" if own.minimum > other.maximum else "overlap"
