"""Tables: columns declared once, filled from records, saved as CSV with a JSON description (see markdown_tables).

If a cell is not ok, missing figures show its status, with the reason as footnote: no cell is ever blank, in the CSV
either.
"""

import csv
import io
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from perfscribe.base import files
from perfscribe.instruments.interleaving import split
from perfscribe.instruments.statistics import Summary, format_figure, summarise
from perfscribe.records import form
from perfscribe.records.records import Record, is_number
from perfscribe.show import references
from perfscribe.show.provenance import of_boots

GIB = 2**30
MIB = 2**20
ROW_COLUMNS = ("status", "reason", "flags", "environment")
# CSV text for rows without a reason, flags or environment.
NOTHING = "none"
ONE_SAMPLE = "one sample"
ONE_ROUND = "one round"
NOT_RECORDED = "not recorded"
BETWEEN_BOOTS = "+"  # in the CSV
_WHOLE = re.compile(r"-?[1-9]\d*|0", re.ASCII)


class Blank(ValueError):
    """A column has no figure for a record, and no text on why; the message names both."""


@dataclass(frozen=True)
class Column:
    """One column. get: returns a record's figure, or a text on why there is none.

    name: in the CSV, with the unit (forward_ms). title: in the report, with the unit in brackets.
    kind: factor (always shown), figure (shown if the cell is ok), published (shown for every cell), setting (a factor,
    CSV only), unshown (a figure, CSV only).
    spread: name of the column with the figure's spread, for rounding.
    exact: the figure is a count or a computed number, shown unrounded.
    spread_get: returns the spread for tables without that column, which then have it in the CSV only.
    range_get: returns the range over rounds of a figure with one value per round, as its spread; None if unknown.
    """

    name: str
    title: str
    get: Callable[[Record], Any]
    kind: str = "figure"
    spread: str = ""
    exact: bool = False
    spread_get: Callable[[Record], Any] | None = None
    range_get: Callable[[Record], float | None] | None = None


def factor(name: str, title: str, get: Callable[[Record], Any] | None = None) -> Column:
    """Column of a factor's level, or of `get` of the record."""
    return Column(name, title, get or (lambda record: record.factors[name]), kind="factor", exact=True)


def factors(**titles: str) -> list[Column]:
    """Columns of factors, with titles."""
    return [factor(name, title) for name, title in titles.items()]


def settings(*names: str) -> list[Column]:
    """CSV-only columns of factors."""
    return [replace(factor(name, name), kind="setting") for name in names]


def named(name: str, title: str, words: Mapping[Any, str]) -> Column:
    """Column of a factor's level in words."""
    return factor(name, title, lambda record: words[record.factors[name]])


def summary(record: Record, sample: str) -> Summary:
    """Statistics of a sample over all rounds; KeyError if the record lacks the sample."""
    return _summarised(tuple(map(tuple, record.samples[sample])))


@lru_cache(maxsize=4096)
def _summarised(rounds: tuple[tuple[float, ...], ...]) -> Summary:
    """Cache the statistics for all columns of a sample."""
    return summarise(rounds)


def _iqr(record: Record, sample: str) -> float | str:
    timing = summary(record, sample)
    return ONE_SAMPLE if timing.n == 1 else timing.iqr


def _std(record: Record, sample: str) -> float | str:
    deviation = summary(record, sample).std
    return ONE_SAMPLE if deviation is None else deviation


def median(sample: str, title: str, name: str = "") -> Column:
    """Column of a sample's median; its spread is the range of medians over rounds, the IQR where there is one round."""
    shown = name or sample
    return Column(
        shown,
        title,
        lambda r: summary(r, sample).median,
        spread=f"{shown}_iqr",
        spread_get=lambda r: _iqr(r, sample),
        range_get=lambda r: range_of(_medians(r, sample)),
    )


def _medians(record: Record, sample: str) -> list[float]:
    """Median of each round."""
    return [_summarised((tuple(samples),)).median for samples in record.samples.get(sample, [])]


def range_of(rounds: Sequence[float]) -> float | None:
    """Return the range of a figure with one value per round; None for one round."""
    return max(rounds) - min(rounds) if len(rounds) > 1 else None


def scaled(name: str, title: str, sample: str, scale: Callable[[Record], float]) -> Column:
    """Column of a sample's median in another unit; scale: a record's factor, also of the spread."""

    def times(figure: float | str | None, record: Record) -> Any:
        return figure * scale(record) if isinstance(figure, float) else figure

    return Column(
        name,
        title,
        lambda r: times(summary(r, sample).median, r),
        spread=f"{name}_spread",
        spread_get=lambda r: times(_iqr(r, sample), r),
        range_get=lambda r: times(range_of(_medians(r, sample)), r),
    )


def iqr(sample: str, title: str = "IQR") -> Column:
    """Column of a sample's interquartile range; a text for a single value."""
    return Column(f"{sample}_iqr", title, lambda r: _iqr(r, sample))


def timed(sample: str, title: str, counted: str = "") -> list[Column]:
    """Columns of median and interquartile range of a sample named after its unit. counted: title of n, if shown."""
    unit = sample.rpartition("_")[2]
    columns = [median(sample, title), iqr(sample, f"IQR ({unit})")]
    return [*columns, count(sample, counted)] if counted else columns


def mean(sample: str, title: str) -> Column:
    """Column of a sample's arithmetic mean, rounded by its standard deviation."""
    return Column(
        f"{sample}_mean",
        title,
        lambda r: summary(r, sample).mean,
        spread=f"{sample}_std",
        spread_get=lambda r: _std(r, sample),
    )


def std(sample: str, title: str) -> Column:
    """Column of a sample's standard deviation; a text for a single value."""
    return Column(f"{sample}_std", title, lambda r: _std(r, sample))


def count(sample: str, title: str = "n", name: str = "") -> Column:
    """Column of a sample's size."""
    return Column(f"{name or sample}_n", title, lambda r: summary(r, sample).n, exact=True)


def value(
    name: str, title: str, scale: float = 1.0, column: str = "", exact: bool = False, without: str = NOT_RECORDED
) -> Column:
    """Column of a single figure or text of the record. without: text for an ok cell that lacks it."""

    def get(record: Record) -> Any:
        figure = record.values.get(name)
        if figure is None:
            return without if record.ok else None
        return figure * scale if is_number(figure) and scale != 1 else figure

    def get_range(record: Record) -> float | None:
        figure = record.ranges.get(name)
        return None if figure is None else figure * scale

    return Column(column or name, title, get, exact=exact, range_get=None if exact else get_range)


def gib(name: str, title: str, column: str = "", without: str = NOT_RECORDED) -> Column:
    """Column of a value in bytes, in GiB."""
    return value(f"{name}_bytes", f"{title} (GiB)", 1 / GIB, f"{column or name}_gib", without=without)


def values(**titles: str) -> list[Column]:
    """Columns of single figures, with titles."""
    return [value(name, title) for name, title in titles.items()]


def exact(**titles: str) -> list[Column]:
    """Columns of counts and texts, with titles."""
    return [value(name, title, exact=True) for name, title in titles.items()]


def rounded(name: str, title: str, spread: str = "") -> Column:
    """Column of a single figure, rounded by another as its spread."""
    by = spread or f"{name}_spread"
    return Column(name, title, lambda r: r.values[name], spread=f"{name}_spread", spread_get=lambda r: r.values[by])


def unshown(*names: str) -> list[Column]:
    """CSV-only columns of single values."""
    return [replace(value(name, name), kind="unshown") for name in names]


def timer(sample: str) -> Column:
    """Column with the name of a sample's timer."""
    return Column("timer", "Timer", lambda r: r.timers.get(sample, NOT_RECORDED), exact=True)


def derived(name: str, title: str, get: Callable[[Record], Any], spread: str = "", exact: bool = False) -> Column:
    """Column of a figure computed from the record, or a text on why there is none."""
    return Column(name, title, get, spread=spread, exact=exact)


def only(where: Callable[[Record], bool], otherwise: str, *columns: Column) -> list[Column]:
    """Restrict columns to some kinds of cells; others show the text `otherwise`."""

    def restricted(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
        return lambda record: otherwise if (record.ok or record.samples) and not where(record) else get(record)

    return [replace(c, get=restricted(c.get), spread_get=c.spread_get and restricted(c.spread_get)) for c in columns]


def rate(name: str, title: str, get: Callable[[Record], Any], sample: str) -> Column:
    """Column of a figure inversely proportional to a sample's median; its spread follows from the sample's."""

    def spread(record: Record) -> Any:
        figure = get(record)
        if not isinstance(figure, float):
            return ONE_SAMPLE if figure is None else figure
        times = summary(record, sample)
        return figure * times.iqr / times.median if times.n > 1 else ONE_SAMPLE

    def spread_of_rounds(record: Record) -> float | None:
        medians = _medians(record, sample)
        if len(medians) < 2 or not isinstance(figure := get(record), float):
            return None
        return figure * summary(record, sample).median * (1 / min(medians) - 1 / max(medians))

    return Column(name, title, get, spread=f"{name}_spread", spread_get=spread, range_get=spread_of_rounds)


def quoted(name: str, title: str, get: Callable[[Record], Any]) -> Column:
    """Column of a published figure, or a text on why there is none."""
    return Column(name, title, get, kind="published", exact=True)


def published(
    experiment: str,
    source: str,
    metric: str,
    title: str,
    column: str = "",
    levels: Callable[[Record], Mapping[str, Any]] = lambda record: record.factors,
) -> Column:
    """Column of a source's first published figure whose factors all match the record; `none` without one."""
    return quoted(
        column or f"{metric}_{source}",
        title,
        lambda record: references.shown(experiment, source, metric, levels(record)),
    )


@dataclass
class Table:
    """A table: columns, one row per record, and notes printed below."""

    id: str
    title: str
    columns: list[Column]
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> pd.DataFrame:
        """Rows that have figures."""
        return self.frame[self.frame["status"] == "ok"]


def ratio_spread(ratio: float, *both: Summary) -> float | str:
    """Spread of a ratio of two medians: the ratio times the sum of both relative spreads; a text for single values."""
    return ONE_SAMPLE if min(s.n for s in both) == 1 else ratio * sum(s.iqr / s.median for s in both)


def turns(record: Record, sample: str) -> list[list[float]]:
    """Samples per turn of a cell with interleaved variants, over all rounds."""
    return [turn for samples in record.samples[sample] for turn in split(list(samples), int(record.factors["turns"]))]


def of_variant(record: Record, key: str, **factors: Any) -> Record:
    """Row of one of a cell's interleaved variants: its data <key>_<name> are also available as <name>."""

    def unprefixed(held: dict[str, Any]) -> dict[str, Any]:
        begin = f"{key}_"
        return held | {name.removeprefix(begin): data for name, data in held.items() if name.startswith(begin)}

    names = ("samples", "series", "values", "timers")
    parts: dict[str, Any] = {name: unprefixed(getattr(record, name)) for name in names}
    return replace(record, factors={**record.factors, **factors}, **parts)


def having(records: Iterable[Record], **levels: Any) -> list[Record]:
    """Records with these levels."""
    return [record for record in records if record.has(**levels)]


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Group records by key, in order of first appearance."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def first_ok(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, Record]:
    """First ok record of each key, else its first record."""
    groups = grouped(records, key).items()
    return {name: next((record for record in group if record.ok), group[0]) for name, group in groups}


def row_of(cell: Record, values: dict[str, Any], **factors: Any) -> Record:
    """Row of a cell with only these values."""
    return replace(cell, factors={**cell.factors, **factors}, samples={}, values=values)


def expanded(
    cells: Iterable[Record], names: Sequence[str], rows: Callable[[Record], Iterable[tuple[Any, ...]]]
) -> list[Record]:
    """Expand each cell into rows; `rows` returns tuples of levels of these factors, then the row's values.

    A cell without figures stays one row.
    """
    absent: tuple[Any, ...] = (*["all"] * len(names), {})
    return [
        row_of(cell, values, **dict(zip(names, levels, strict=True)))
        for cell in cells
        for *levels, values in (rows(cell) if cell.ok else [absent])
    ]


def _size(size_bytes: float) -> str:
    unit, name = (GIB, "GiB") if size_bytes >= GIB / 10 else (MIB, "MiB")
    return f"{format_figure(size_bytes / unit)} {name}"


def reason(record: Record) -> str:
    """Reason why the record has no figures; for oom the requested and free bytes, if known."""
    asked, free = record.error.get("requested_bytes"), record.error.get("free_bytes")
    if record.status == "oom" and asked is not None:
        return f"asked for {_size(asked)}" + (f", {_size(free)} free" if free is not None else "")
    return record.reason


def _is_blank(figure: Any) -> bool:
    """Return whether the value is empty or not finite."""
    if isinstance(figure, numbers.Real) and not isinstance(figure, numbers.Integral):
        return not math.isfinite(figure)
    return figure is None or not str(figure).strip()


def _figure_before_failure(record: Record, column: Column) -> Any:
    """Figure that the cell had before it failed, else its status."""
    if record.values.get("before_start") or not (record.samples or record.values):
        return record.status
    try:
        figure = column.get(record)
    except (KeyError, TypeError):
        return record.status
    return record.status if _is_blank(figure) or figure == NOT_RECORDED else figure


def _row(record: Record, columns: Sequence[Column]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in columns:
        shown = record.ok or column.kind in ("factor", "setting", "published")
        try:
            row[column.name] = column.get(record) if shown else _figure_before_failure(record, column)
        except KeyError as error:
            known = ", ".join((*record.factors, *record.samples, *record.values))
            raise Blank(f"column {column.name}: {record.experiment} has no {error} among {known}") from error
        if shown and _is_blank(row[column.name]):
            raise Blank(
                f"{column.name} of {record.factors} is {row[column.name]!r}: a column gives a figure or says why not"
            )
    row |= {
        "status": record.status,
        "reason": reason(record),
        "flags": "; ".join(record.flags),
        "environment": "+".join(record.environments),
    }
    return {name: (" ".join(cell.split()) or NOTHING) if isinstance(cell, str) else cell for name, cell in row.items()}


def make(
    table_id: str, title: str, records: Iterable[Record], columns: Sequence[Column], notes: Iterable[str] = ()
) -> Table:
    """Make a table of these records, one row each, in order, texts on one line; ValueError for blank cells.

    Spreads of columns that the table lacks are added as CSV-only columns, since rounding needs them, and so are boots,
    with a note if there are several.
    """
    records = list(records)
    columns = _with_rounds(columns, records)
    columns = [*columns, *_unshown_spreads(columns)]
    boots = [frozenset(record.boots) for record in records if record.ok]
    if any(boots):
        columns.append(BOOTS)
    if remark := of_boots(boots):
        notes = [*notes, f"{remark[0].upper()}{remark[1:]}."]
    names = [*(column.name for column in columns), *ROW_COLUMNS]
    if len(set(names)) != len(names):
        raise ValueError(f"{table_id}: two columns have the same name")
    frame = pd.DataFrame([_row(record, columns) for record in records], columns=names, dtype=object)
    return Table(table_id, title, list(columns), frame, list(notes))


BOOTS = Column(
    "boots", "Boots", lambda record: BETWEEN_BOOTS.join(sorted(record.boots)) or NOTHING, "unshown", exact=True
)


def _with_rounds(columns: Sequence[Column], records: Sequence[Record]) -> list[Column]:
    """Add ranges over rounds and a column with the number of rounds, if any cell was measured in several."""
    if not any(record.ok and record.rounds > 1 for record in records):
        return list(columns)
    result, replaced = [], set()
    for column in columns:
        get = column.range_get
        if get is not None and any(get(record) is not None for record in records):
            replaced.add(column.spread)
            column = replace(column, spread=f"{column.name}_spread", spread_get=partial(_range, get))
        result.append(column)
    result = [replace(column, kind="unshown") if column.name in replaced else column for column in result]
    return [*result, Column("rounds", "Rounds", lambda record: record.rounds if record.ok else None, exact=True)]


def _range(get: Callable[[Record], float | None], record: Record) -> Any:
    """Range of a figure over rounds, or a text if there is none."""
    spread = get(record)
    return spread if spread is not None or not record.ok else ONE_ROUND


def _unshown_spreads(columns: Sequence[Column]) -> list[Column]:
    """Columns of spreads that these columns name and that are not among them."""
    shown = {column.name for column in columns}
    spreads = {
        column.spread: Column(column.spread, f"spread of {column.title}", column.spread_get, kind="unshown")
        for column in columns
        if column.spread_get is not None and column.spread not in shown
    }
    return list(spreads.values())


def write(table: Table, folder: Path) -> None:
    """Write <id>.csv (figures unrounded) and the description <id>.json."""
    text = io.StringIO()
    table.frame.to_csv(text, index=False, lineterminator="\n")
    files.write_text(folder / f"{table.id}.csv", text.getvalue())
    description = {
        "title": table.title,
        "columns": [
            {"name": c.name, "title": c.title, "kind": c.kind, "spread": c.spread, "exact": c.exact}
            for c in table.columns
        ],
        "notes": table.notes,
    }
    files.write_json(folder / f"{table.id}.json", description)


@dataclass(frozen=True)
class Stored:
    """A table as read from its files: column descriptions by name, rows with numbers parsed."""

    columns: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]


def read(folder: Path, table_id: str) -> Stored:
    """Invert `write`; empty if there is no such table, ValueError if its files do not match."""
    path = folder / f"{table_id}.csv"
    described = path.with_suffix(".json")
    if not path.is_file() or not described.is_file():
        return Stored({}, ())
    with form.as_written(described):
        columns = {column["name"]: column for column in files.read_json(described)["columns"]}
    with form.as_written(path), open(path, newline="", encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
        if header != [*columns, *ROW_COLUMNS] or any(len(line) != len(header) for line in lines):
            raise LookupError("rows and header differ")
    return Stored(columns, [dict(zip(header, map(as_cell, line), strict=True)) for line in lines])


def as_cell(text: str) -> int | float | str:
    """Parse a CSV cell: a number if its text is exactly what writing that number gives, else the text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) and repr(value) == text else text
