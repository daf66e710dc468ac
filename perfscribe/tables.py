"""Tables: columns declared once, filled from records, kept as CSV with a JSON description, shown as Markdown.

A row whose cell is not ok shows its status in every column of figures, and the reason as a footnote: no cell of a
table is ever blank.
"""

from __future__ import annotations

import io
import math
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
ROW_COLUMNS = ("status", "reason", "flags", "environment")


@dataclass(frozen=True)
class Column:
    """One column. get gives a record's figure, or a text that says why there is none.

    name: in the CSV, with the unit (forward_ms). title: in the report, with the unit in brackets.
    kind: factor (always shown), figure (shown where the cell is ok), published (shown for every cell).
    spread: name of the column that says how far the figure may be trusted, for rounding.
    exact: whether the figure is a count or a computed number that is shown unrounded.
    """

    name: str
    title: str
    get: Callable[[Record], Any]
    kind: str = "figure"
    spread: str = ""
    exact: bool = False


def factor(name: str, title: str) -> Column:
    """A factor's level."""
    return Column(name, title, lambda record: record.factors[name], kind="factor", exact=True)


def summary(record: Record, sample: str) -> Summary:
    """Statistics of a sample over all rounds; KeyError where the record has no such sample."""
    return summarise(record.samples[sample])


def median(sample: str, title: str, scale: float = 1.0, name: str = "") -> Column:
    """Median of a sample, rounded by its interquartile range."""
    shown = name or sample
    return Column(shown, title, lambda r: summary(r, sample).median * scale, spread=f"{shown}_iqr")


def iqr(sample: str, title: str = "IQR", scale: float = 1.0, name: str = "") -> Column:
    """Interquartile range of a sample."""
    return Column(f"{name or sample}_iqr", title, lambda r: summary(r, sample).iqr * scale)


def mean(sample: str, title: str, scale: float = 1.0) -> Column:
    """Arithmetic mean of a sample."""
    return Column(f"{sample}_mean", title, lambda r: summary(r, sample).mean * scale, spread=f"{sample}_std")


def std(sample: str, title: str, scale: float = 1.0) -> Column:
    """Sample standard deviation; one sample has none."""

    def get(record: Record) -> float | str:
        spread = summary(record, sample).std
        return "one sample" if spread is None else spread * scale

    return Column(f"{sample}_std", title, get)


def count(sample: str, title: str = "n") -> Column:
    """Number of samples."""
    return Column(f"{sample}_n", title, lambda r: summary(r, sample).n, exact=True)


def value(name: str, title: str, scale: float = 1.0, column: str = "", exact: bool = False) -> Column:
    """A single figure or text of the record."""

    def get(record: Record) -> Any:
        found = record.values.get(name)
        if found is None:
            return "not recorded"
        return (
            found * scale if isinstance(found, (int, float)) and not isinstance(found, bool) and scale != 1 else found
        )

    return Column(column or name, title, get, exact=exact)


def timer(sample: str) -> Column:
    """Name of the timer that read a sample."""
    return Column("timer", "Timer", lambda r: r.timers.get(sample, "not recorded"), exact=True)


def derived(name: str, title: str, get: Callable[[Record], Any], spread: str = "", exact: bool = False) -> Column:
    """A figure computed from the record; a text where there is none says why."""
    return Column(name, title, get, spread=spread, exact=exact)


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


def _row(record: Record, columns: Sequence[Column]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in columns:
        shown = record.ok or column.kind in ("factor", "published")
        row[column.name] = column.get(record) if shown else None
        if shown and (row[column.name] is None or row[column.name] == ""):
            raise ValueError(f"{column.name} of {record.factors} is blank: a column gives a figure or says why not")
    return row | {
        "status": record.status,
        "reason": record.reason,
        "flags": "; ".join(record.flags),
        "environment": "+".join(record.environments),
    }


def make(
    table_id: str, title: str, records: Iterable[Record], columns: Sequence[Column], notes: Iterable[str] = ()
) -> Table:
    """A table of these records, one row each in their order; ValueError where a cell would be blank."""
    records = list(records)
    names = [*(column.name for column in columns), *ROW_COLUMNS]
    if len(set(names)) != len(names):
        raise ValueError(f"{table_id}: two columns have the same name")
    frame = pd.DataFrame([_row(record, columns) for record in records], columns=names, dtype=object)
    experiment = records[0].experiment if records else ""
    return Table(table_id, title, experiment, list(columns), frame, list(notes))


def write(table: Table, folder: Path) -> None:
    """The table as <id>.csv (figures unrounded) and its description as <id>.json."""
    text = io.StringIO()
    table.frame.to_csv(text, index=False, lineterminator="\n")
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
    try:
        return float(text)
    except ValueError:
        return None


def _shown(text: str, column: Mapping[str, Any], row: Mapping[str, str]) -> str:
    figure = _number(text)
    if figure is None:
        return text
    if column["exact"]:
        return f"{figure:.0f}" if figure == int(figure) and abs(figure) < 1e15 else text
    spread = _number(row.get(column["spread"], "")) if column["spread"] else None
    return format_figure(figure, spread if spread and math.isfinite(spread) else None)


def to_markdown(folder: Path, table_id: str) -> str:
    """The table as Markdown from its files: figures rounded, statuses with footnotes, notes below.

    Neighbouring rows that have no figures for one and the same reason stand in one row that lists their levels.
    """
    description = files.read_json(folder / f"{table_id}.json")
    frame = pd.read_csv(folder / f"{table_id}.csv", dtype=str, keep_default_na=False)
    columns = description["columns"]
    reasons: list[str] = []
    groups = _neighbours(frame.to_dict("records"))
    rows = [_markdown_row(_folded(group, columns), columns, reasons) for group in groups]
    titles = [column["title"] for column in columns]
    parts = [tabulate(rows, titles, tablefmt="pipe", disable_numparse=True)]
    parts.append("\n".join(f"[{number}] {reason}  " for number, reason in enumerate(reasons, start=1)))
    parts.append("\n".join(f"{note}  " for note in description["notes"]))
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _neighbours(rows: Sequence[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Rows grouped where neighbours lack figures for the same reason; a row with figures is a group of its own."""

    def kind(row: Mapping[str, str]) -> tuple[str, str]:
        return row["status"], row["reason"]

    groups: list[list[dict[str, str]]] = []
    for row in rows:
        if groups and row["status"] != "ok" and kind(groups[-1][0]) == kind(row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [part for group in groups for part in ([group] if len(group) >= FOLDED_FROM else [[row] for row in group])]


def _folded(group: Sequence[Mapping[str, str]], columns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """One row for a group: every level that a column holds in it."""
    if len(group) == 1:
        return dict(group[0])
    shown = {column["name"]: ", ".join(dict.fromkeys(row[column["name"]] for row in group)) for column in columns}
    shown |= {column["name"]: "see CSV" for column in columns if column["kind"] == "published"}
    reason = f"{group[0]['reason']} ({len(group)} cells)"
    return shown | {"status": group[0]["status"], "reason": reason, "flags": "", "environment": ""}


def _markdown_row(row: Mapping[str, str], columns: Sequence[Mapping[str, Any]], reasons: list[str]) -> list[str]:
    remark = f"{row['status']}: {row['reason']}" if row["status"] != "ok" else row["flags"]
    if remark and remark not in reasons:
        reasons.append(remark)
    mark = f" [{reasons.index(remark) + 1}]" if remark else ""
    shown, marked = [], row["status"] == "ok" and not row["flags"]
    for column in columns:
        if column["kind"] == "figure" and row["status"] != "ok":
            shown.append(row["status"] + mark)
            continue
        text = _shown(row[column["name"]], column, row)
        if column["kind"] == "figure" and not marked:
            text, marked = text + mark, True
        shown.append(text)
    return [text.replace("|", "\\|") for text in shown]
