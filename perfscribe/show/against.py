"""Comparisons of rows with a base row: the same workload at other levels of the compared factors."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from perfscribe.records.records import Record
from perfscribe.show import tables as t


def workload(record: Record, compared: Collection[str]) -> tuple[Any, ...]:
    """Key of rows to compare: all factors except those in `compared`."""
    return tuple((name, level) for name, level in record.factors.items() if name not in compared)


def base_of(cells: Iterable[Record], compared: Collection[str], **base: Any) -> Callable[[Record], Record | None]:
    """Return a function that finds the ok cell with a record's workload and the levels `base`; None if missing."""
    known = {workload(record, compared): record for record in cells if record.ok and record.has(**base)}
    return lambda record: known.get(workload(record, compared))


def of_both(
    base: Callable[[Record], Record | None], missing: str, get: Callable[[Record, Record], Any]
) -> Callable[[Record], Any]:
    """Column function of a row and its base; missing: the text for rows without a base."""

    def value(record: Record) -> Any:
        other = base(record)
        return missing if other is None else get(record, other)

    return value


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
        figure, base_figure = (get(row) if get else t.summary(row, sample).median for row in (record, other))
        return float(figure / base_figure)

    def spread(record: Record, other: Record) -> float | str:
        both = (t.summary(row, sample) for row in (record, other))
        return 0.0 if other is record else t.ratio_spread(over(record, other), *both)

    if not sample:
        return t.derived(name, title, of_both(base, missing, over))
    spreads = of_both(base, missing, spread)
    return t.Column(name, title, of_both(base, missing, over), spread=f"{name}_spread", spread_get=spreads)


def apart(name: str, title: str, base: Callable[[Record], Record | None], missing: str, sample: str) -> t.Column:
    """Column: whether all samples of a row are on one side of all samples of its base; a fact, not a test."""

    def verdict(record: Record, other: Record) -> str:
        times, base_times = (t.summary(row, sample) for row in (record, other))
        if times.maximum < base_times.minimum:
            return "all quicker"
        return "all slower" if times.minimum > base_times.maximum else "overlap"

    return t.derived(name, title, of_both(base, missing, verdict), exact=True)
