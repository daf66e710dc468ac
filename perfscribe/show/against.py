"""Comparisons of rows with a base row: the same workload at other levels of the compared factors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from perfscribe.records.records import Record
from perfscribe.show import tables as t


def workload(record: Record, own: Collection[str]) -> tuple[Any, ...]:
    """Key of rows to compare: all factors except those in `own`."""
    return tuple((name, level) for name, level in record.factors.items() if name not in own)


def base_of(cells: Iterable[Record], own: Collection[str], **base: Any) -> Callable[[Record], Record | None]:
    """Return a function that finds the ok cell with a record's workload and the levels `base`; None if missing."""
    known = {workload(record, own): record for record in cells if record.ok and record.has(**base)}
    return lambda record: known.get(workload(record, own))


def of_both(
    base: Callable[[Record], Record | None], missing: str, get: Callable[[Record, Record], Any]
) -> Callable[[Record], Any]:
    """Column function of a row and its base; missing: the text for rows without a base."""

    def found(record: Record) -> Any:
        other = base(record)
        return missing if other is None else get(record, other)

    return found


def ratio(
    name: str,
    title: str,
    base: Callable[[Record], Record | None],
    missing: str,
    get: Callable[[Record], float] | None = None,
    sample: str = "",
) -> t.Column:
    """Column of a figure divided by the base's, rounded by the relative spreads of that sample in both.

    missing: text for rows without a base. get: the figure; default: the sample's median.
    """

    def over(record: Record, other: Record) -> float:
        own, of_base = (get(one) if get else t.summary(one, sample).median for one in (record, other))
        return float(own / of_base)

    def spread(record: Record, other: Record) -> float | str:
        both = (t.summary(one, sample) for one in (record, other))
        return 0.0 if other is record else t.ratio_spread(over(record, other), *both)

    if not sample:
        return t.derived(name, title, of_both(base, missing, over))
    spreads = of_both(base, missing, spread)
    return t.Column(name, title, of_both(base, missing, over), spread=f"{name}_spread", spread_get=spreads)


def apart(name: str, title: str, base: Callable[[Record], Record | None], missing: str, sample: str) -> t.Column:
    """Column: whether all samples of a row are on one side of all samples of its base; a fact, not a test."""

    def found(record: Record, other: Record) -> str:
        own, of_base = (t.summary(one, sample) for one in (record, other))
        if own.maximum < of_base.minimum:
            return "all quicker"
        return "all slower" if own.minimum > of_base.maximum else "overlap"

    return t.derived(name, title, of_both(base, missing, found), exact=True)
