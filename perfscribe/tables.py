"""Tables: columns declared once, filled from records, kept as CSV with a JSON description, shown as Markdown.

A row whose cell is not ok shows its status in the place of each figure that it lacks, and the reason as a footnote: no
cell of a table is ever blank, in the CSV neither.
"""

from __future__ import annotations

import io
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from perfscribe import files, references
from perfscribe.records import Record
from perfscribe.statistics import Summary, format_figure, summarise

GIB = 2**30
MIB = 2**20
# From how many neighbouring rows on that lack figures for one reason the report shows one row for all.
FOLDED_FROM = 3
# Published figures stand as their source prints them; those with more digits, as after a conversion, are rounded.
LONGEST_PUBLISHED_DIGITS, PUBLISHED_DIGITS = 7, 5
ROW_COLUMNS = ("status", "reason", "flags", "environment")
# What the CSV holds where a row has no reason, no flag or no environment.
NOTHING = "none"
ONE_SAMPLE = "one sample"
NOT_RECORDED = "not recorded"
EMPTY_NOTE = "No cell of the plan belongs in this table."
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Column:
    """One column. get gives a record's figure, or a text that says why there is none.

    name: in the CSV, with the unit (forward_ms). title: in the report, with the unit in brackets.
    kind: factor (always shown), figure (shown where the cell is ok), published (shown for every cell), unshown
    (a figure in the CSV alone).
    spread: name of the column that says how far the figure may be trusted, for rounding.
    exact: whether the figure is a count or a computed number that is shown unrounded.
    spread_get: gives the spread, for a table without that column: it then stands in the CSV alone.
    rounds_get: says how the figure differs from round to round; shown where a cell has several.
    """

    name: str
    title: str
    get: Callable[[Record], Any]
    kind: str = "figure"
    spread: str = ""
    exact: bool = False
    spread_get: Callable[[Record], Any] | None = None
    rounds_get: Callable[[Record], Any] | None = None


def factor(name: str, title: str) -> Column:
    """A factor's level."""
    return Column(name, title, lambda record: record.factors[name], kind="factor", exact=True)


def summary(record: Record, sample: str) -> Summary:
    """Statistics of a sample over all rounds; KeyError where the record has no such sample."""
    return summarise(record.samples[sample])


def _iqr(record: Record, sample: str, scale: float) -> float | str:
    found = summary(record, sample)
    return ONE_SAMPLE if found.n == 1 else found.iqr * scale


def _std(record: Record, sample: str, scale: float) -> float | str:
    found = summary(record, sample).std
    return ONE_SAMPLE if found is None else found * scale


def _over_rounds(record: Record, sample: str, scale: float) -> str:
    """The interval of the median over rounds, or their range where there are too few for one, and which it is."""
    found = summary(record, sample)
    limits = found.interval or found.range
    if limits is None:
        return "one round"
    low, high = (format_figure(limit * scale) for limit in limits)
    return f"{low} to {high} ({found.spread_label})"


def median(sample: str, title: str, scale: float = 1.0, name: str = "") -> Column:
    """Median of a sample, rounded by its interquartile range."""
    shown = name or sample
    return Column(
        shown,
        title,
        lambda r: summary(r, sample).median * scale,
        spread=f"{shown}_iqr",
        spread_get=lambda r: _iqr(r, sample, scale),
        rounds_get=lambda r: _over_rounds(r, sample, scale),
    )


def iqr(sample: str, title: str = "IQR", scale: float = 1.0, name: str = "") -> Column:
    """Interquartile range of a sample; one sample has none."""
    return Column(f"{name or sample}_iqr", title, lambda r: _iqr(r, sample, scale))


def mean(sample: str, title: str, scale: float = 1.0) -> Column:
    """Arithmetic mean of a sample, rounded by its standard deviation."""
    return Column(
        f"{sample}_mean",
        title,
        lambda r: summary(r, sample).mean * scale,
        spread=f"{sample}_std",
        spread_get=lambda r: _std(r, sample, scale),
    )


def std(sample: str, title: str, scale: float = 1.0) -> Column:
    """Sample standard deviation; one sample has none."""
    return Column(f"{sample}_std", title, lambda r: _std(r, sample, scale))


def count(sample: str, title: str = "n") -> Column:
    """Number of samples."""
    return Column(f"{sample}_n", title, lambda r: summary(r, sample).n, exact=True)


def value(name: str, title: str, scale: float = 1.0, column: str = "", exact: bool = False) -> Column:
    """A single figure or text of the record."""

    def get(record: Record) -> Any:
        found = record.values.get(name)
        if found is None:
            return NOT_RECORDED
        return (
            found * scale if isinstance(found, (int, float)) and not isinstance(found, bool) and scale != 1 else found
        )

    return Column(column or name, title, get, exact=exact)


def timer(sample: str) -> Column:
    """Name of the timer that read a sample."""
    return Column("timer", "Timer", lambda r: r.timers.get(sample, NOT_RECORDED), exact=True)


def derived(name: str, title: str, get: Callable[[Record], Any], spread: str = "", exact: bool = False) -> Column:
    """A figure computed from the record; a text where there is none says why."""
    return Column(name, title, get, spread=spread, exact=exact)


def rate(name: str, title: str, get: Callable[[Record], Any], sample: str) -> Column:
    """A figure computed as something over a sample's median: as uncertain, relatively, as the median is."""

    def spread(record: Record) -> Any:
        found, times = get(record), summary(record, sample)
        return found * times.iqr / times.median if isinstance(found, float) and times.n > 1 else ONE_SAMPLE

    return Column(name, title, get, spread=f"{name}_spread", spread_get=spread)


def published(
    experiment: str, metric: str, source: str, title: str, factors: Sequence[str], column: str = "", **fixed: Any
) -> Column:
    """The published figure of a source for the same levels of these factors; `none` where the source has none."""
    known = references.load(experiment)

    def get(record: Record) -> Any:
        wanted = {name: record.factors[name] for name in factors if name in record.factors} | fixed
        found = [ref for ref in references.find(known, metric, **wanted) if ref.source == source]
        if not found:
            return "none"
        return found[0].text if found[0].value is None else found[0].value

    return Column(column or f"{metric}_{source}", title, get, kind="published", exact=True)


@dataclass
class Table:
    """A table: its columns, one row a record, and notes printed under it."""

    id: str
    title: str
    experiment: str
    columns: list[Column]
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> pd.DataFrame:
        """The rows that have figures."""
        return self.frame[self.frame["status"] == "ok"]


def _size(size_bytes: float) -> str:
    unit, name = (GIB, "GiB") if size_bytes >= GIB / 10 else (MIB, "MiB")
    return f"{format_figure(size_bytes / unit)} {name}"


def reason(record: Record) -> str:
    """Why the record has no figures; for oom the bytes asked for and free, as far as they are known."""
    asked, free = record.error.get("requested_bytes"), record.error.get("free_bytes")
    if record.status == "oom" and asked is not None:
        return f"asked for {_size(asked)}" + (f", {_size(free)} free" if free is not None else "")
    return record.reason


def _is_blank(found: Any) -> bool:
    """Whether a reader would see nothing, or no number, in its place."""
    if isinstance(found, numbers.Real) and not isinstance(found, numbers.Integral):
        return not math.isfinite(found)
    return found is None or not str(found).strip()


def _figure_before_failure(record: Record, column: Column) -> Any:
    """The column's figure where the cell had it before it failed, else None."""
    if not record.samples and not record.values:
        return None
    try:
        found = column.get(record)
    except (KeyError, TypeError):
        return None
    return None if _is_blank(found) or found == NOT_RECORDED else found


def _row(record: Record, columns: Sequence[Column]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in columns:
        shown = record.ok or column.kind in ("factor", "published")
        row[column.name] = column.get(record) if shown else _figure_before_failure(record, column)
        if shown and _is_blank(row[column.name]):
            raise ValueError(
                f"{column.name} of {record.factors} is {row[column.name]!r}: a column gives a figure or says why not"
            )
    row |= {
        "status": record.status,
        "reason": reason(record),
        "flags": "; ".join(record.flags),
        "environment": "+".join(record.environments),
    }
    return {name: " ".join(cell.split()) if isinstance(cell, str) else cell for name, cell in row.items()}


def make(
    table_id: str, title: str, records: Iterable[Record], columns: Sequence[Column], notes: Iterable[str] = ()
) -> Table:
    """A table of these records, one row each in their order, texts on one line; ValueError where a cell would be blank.

    A column whose spread the table does not show brings it along unshown, so that it is rounded all the same.
    """
    records = list(records)
    columns = _with_rounds(columns, records)
    columns = [*columns, *_unshown_spreads(columns)]
    names = [*(column.name for column in columns), *ROW_COLUMNS]
    if len(set(names)) != len(names):
        raise ValueError(f"{table_id}: two columns have the same name")
    frame = pd.DataFrame([_row(record, columns) for record in records], columns=names, dtype=object)
    experiment = records[0].experiment if records else ""
    return Table(table_id, title, experiment, list(columns), frame, list(notes))


def _with_rounds(columns: Sequence[Column], records: Sequence[Record]) -> list[Column]:
    """The columns, and behind each median what it did over the rounds, where any cell was measured in several."""
    several = any(len(rounds) > 1 for record in records for rounds in record.samples.values())
    result = []
    for column in columns:
        result.append(column)
        if several and column.rounds_get is not None:
            result.append(Column(f"{column.name}_rounds", f"{column.title}, over rounds", column.rounds_get))
    return result


def _unshown_spreads(columns: Sequence[Column]) -> list[Column]:
    """A column for each spread that these columns name and that is not among them."""
    shown = {column.name for column in columns}
    spreads = {
        column.spread: Column(column.spread, f"spread of {column.title}", column.spread_get, kind="unshown")
        for column in columns
        if column.spread_get is not None and column.spread not in shown
    }
    return list(spreads.values())


def _filled(table: Table) -> pd.DataFrame:
    """The frame as the CSV holds it: the status in place of figures that a row lacks, nothing blank."""
    frame = table.frame.copy()
    lacking = frame["status"] != "ok"
    for column in table.columns:
        if column.kind in ("figure", "unshown"):
            absent = lacking & frame[column.name].isna()
            frame.loc[absent, column.name] = frame.loc[absent, "status"]
    for name in ROW_COLUMNS[1:]:
        frame.loc[frame[name] == "", name] = NOTHING
    return frame


def write(table: Table, folder: Path) -> None:
    """The table as <id>.csv (figures unrounded) and its description as <id>.json."""
    text = io.StringIO()
    _filled(table).to_csv(text, index=False, lineterminator="\n")
    files.write_text(folder / f"{table.id}.csv", text.getvalue())
    description = {
        "id": table.id,
        "title": table.title,
        "experiment": table.experiment,
        "columns": [
            {"name": c.name, "title": c.title, "kind": c.kind, "spread": c.spread, "exact": c.exact}
            for c in table.columns
        ],
        "rows": len(table.frame),
        "ok": len(table.ok),
        "notes": table.notes,
    }
    files.write_json(folder / f"{table.id}.json", description)


def _number(text: str) -> float | None:
    """The finite number that a text is; None for any other text, though Python read it as one (nan, 1_0, 1e999)."""
    figure = float(text) if _NUMBER.fullmatch(text) else math.nan
    return figure if math.isfinite(figure) else None


def _shown(text: str, column: Mapping[str, Any], row: Mapping[str, str]) -> str:
    figure = _number(text)
    if figure is None:
        return text
    if column["exact"] and figure == int(figure) and abs(figure) < 1e15:
        return f"{figure:.0f}"
    if column["kind"] == "published" and len(re.sub(r"e.*|\D", "", text).lstrip("0")) > LONGEST_PUBLISHED_DIGITS:
        return format_figure(figure, digits=PUBLISHED_DIGITS)
    if column["exact"]:
        return text
    spread = _number(row.get(column["spread"], "")) if column["spread"] else None
    return format_figure(figure, spread)


def markdown_text(text: str) -> str:
    """Text for a cell of a Markdown table: one line, with pipes and what would pass for an HTML tag escaped."""
    line = " ".join(text.split()).replace("<", "&lt;")
    return re.sub(r"(\\*)\|", r"\1\1\\|", line)  # a backslash before a pipe would undo the pipe's own


def to_markdown(folder: Path, table_id: str) -> str:
    """The table as Markdown from its files: figures rounded, statuses with footnotes, notes below.

    Neighbouring rows that have no figures for one and the same reason stand in one row that lists their levels.
    """
    description = files.read_json(folder / f"{table_id}.json")
    columns = [column for column in description["columns"] if column["kind"] != "unshown"]
    remarks: list[str] = []
    figures = [column["name"] for column in columns if column["kind"] == "figure"]
    groups = _neighbours(_read_rows(folder / f"{table_id}.csv"), figures)
    rows = [_markdown_row(_folded(group, columns), columns, remarks) for group in groups]
    titles = [markdown_text(column["title"]) for column in columns]
    notes = description["notes"] if rows else [EMPTY_NOTE, *description["notes"]]
    parts = [tabulate(rows, titles, tablefmt="pipe", disable_numparse=True)]
    parts.append("\n".join(f"[{number}] {markdown_text(text)}  " for number, text in enumerate(remarks, start=1)))
    parts.append("\n".join(f"{note}  " for note in notes))
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _read_rows(path: Path) -> list[dict[str, str]]:
    """The CSV's rows as text; figures of different environments are told apart by a flag."""
    rows: list[dict[str, str]] = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    several = len({row["environment"] for row in rows if row["status"] == "ok"}) > 1
    for row in rows:
        row |= {name: "" for name in ("reason", "flags") if row[name] == NOTHING}
        if several and row["status"] == "ok":
            row["flags"] = "; ".join(filter(None, [row["flags"], f"environment {row['environment']}"]))
    return rows


def _neighbours(rows: Sequence[dict[str, str]], figures: Sequence[str]) -> list[list[dict[str, str]]]:
    """Rows grouped where neighbours lack figures for the same reason; a row with any figure is a group of its own."""

    def kind(row: Mapping[str, str]) -> tuple[str, str] | None:
        has_none = row["status"] != "ok" and all(row[name] == row["status"] for name in figures)
        return (row["status"], row["reason"]) if has_none else None

    groups: list[list[dict[str, str]]] = []
    for row in rows:
        if groups and kind(row) is not None and kind(groups[-1][0]) == kind(row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [part for group in groups for part in ([group] if len(group) >= FOLDED_FROM else [[row] for row in group])]


def _folded(group: Sequence[Mapping[str, str]], columns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """One row for a group: every level that a column holds in it."""
    if len(group) == 1:
        return dict(group[0])
    levels = {column["name"]: list(dict.fromkeys(row[column["name"]] for row in group)) for column in columns}
    unlike = {c["name"]: ["see CSV"] for c in columns if c["kind"] == "published" and len(levels[c["name"]]) > 1}
    shown = {name: ", ".join(found) for name, found in (levels | unlike).items()}
    reason = f"{group[0]['reason']} ({len(group)} cells)"
    return shown | {"status": group[0]["status"], "reason": reason, "flags": "", "environment": ""}


def _markdown_row(row: Mapping[str, str], columns: Sequence[Mapping[str, Any]], remarks: list[str]) -> list[str]:
    """The row's cells; its remark is added to remarks, and its number stands at the row's first figure."""
    lacking = row["status"] != "ok"
    remark = f"{row['status']}: {row['reason']}" if lacking else row["flags"]
    if remark and remark not in remarks:
        remarks.append(remark)
    mark = f" [{remarks.index(remark) + 1}]" if remark else ""
    shown, marked = [], not remark
    for column in columns:
        is_figure = column["kind"] == "figure"
        text = _shown(row[column["name"]], column, row)
        marks_here = is_figure and (row[column["name"]] == row["status"] if lacking else not marked)
        shown.append(markdown_text(text) + (mark if marks_here else ""))
        marked = marked or marks_here
    return shown if marked else [shown[0] + mark, *shown[1:]]
