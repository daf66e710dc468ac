"""Renders table files as Markdown: figures rounded by spread, statuses with footnotes, rows without figures folded."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from perfscribe.base import files
from perfscribe.instruments.statistics import format_figure
from perfscribe.show.provenance import devices_of
from perfscribe.show.rounding import Number
from perfscribe.show.tables import NOT_RECORDED, NOTHING

# Minimum number of adjacent rows without figures, for one reason, that are folded into one.
FOLDED_FROM = 3
# Published figures are printed as in their source; longer ones, e.g. from a conversion, are rounded.
LONGEST_PUBLISHED_DIGITS, PUBLISHED_DIGITS = 7, 5
# A table whose memory is all below this is shown in MiB: 2.46 MiB instead of 0.00240 GiB.
LEAST_GIB = 0.5
EMPTY_NOTE = "No cell of the plan belongs in this table."
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def as_number(text: str) -> float | None:
    """Parse a finite number; None for other texts, even if Python parses them (nan, 1_0, 1e999)."""
    figure = float(text) if _NUMBER.fullmatch(text) else math.nan
    return figure if math.isfinite(figure) else None


def as_shown(text: str, column: Mapping[str, Any], row: Mapping[str, str]) -> str:
    """Format a CSV cell for a page; figures with their spread."""
    figure = as_number(text)
    if figure is None:
        return "-" if column["kind"] == "published" and text == NOTHING else text
    if column["exact"] and figure == int(figure) and abs(figure) < 1e15:
        return f"{figure:.0f}"
    if column["kind"] == "published" and len(re.sub(r"e.*|\D", "", text).lstrip("0")) > LONGEST_PUBLISHED_DIGITS:
        return format_figure(figure, digits=PUBLISHED_DIGITS)
    if column["exact"]:
        return text
    name = str(column["spread"])
    spread = as_number(row.get(name, "")) if name else None
    half = 1.0 if name.endswith("_std") else 0.5
    return str(Number(figure, None if spread is None else spread * half))


def markdown_text(text: str) -> str:
    """Escape text for a Markdown table cell: one line, with pipes and HTML tags escaped."""
    line = " ".join(text.split()).replace("<", "&lt;")
    return re.sub(r"(\\*)\|", r"\1\1\\|", line)  # double the backslashes before a pipe, or they would unescape it


def of_texts(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """Markdown table of texts and whole numbers, escaped."""
    cells = [[markdown_text(str(cell)) for cell in row] for row in rows]
    return tabulate(cells, [markdown_text(head) for head in heads], tablefmt="pipe", disable_numparse=True)


def line(cells: Iterable[str]) -> str:
    """Row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def to_markdown(folder: Path, table_id: str, most_rows: int = 0, fold: bool = True) -> str:
    """Render a table's files as Markdown: figures with half their interquartile range, footnotes and notes below.

    most_rows: show only the last rows, up to this number; 0: all. Columns that no measured row has recorded are left
    out; those that are constant over measured rows become a line above. fold: merge adjacent rows that lack figures for
    one reason, listing all their levels.
    """
    description = files.read_json(folder / f"{table_id}.json")
    read = _read_rows(folder / f"{table_id}.csv")
    if not read:
        return f"{EMPTY_NOTE}\n"
    _small_in_mib(description["columns"], read)
    measured = [row for row in read if row["status"] == "ok"]
    spreads = {column["spread"] for column in description["columns"] if column["spread"]}
    columns: list[dict[str, Any]] = []
    constant: list[dict[str, Any]] = []
    for column in description["columns"]:
        is_unpublished = column["kind"] == "published" and {row[column["name"]] for row in read} == {NOTHING}
        is_hidden = is_unpublished or column["kind"] in ("setting", "unshown") or column["name"] in spreads
        if is_hidden or {row[column["name"]] for row in measured} == {NOT_RECORDED}:
            continue
        may_be_constant = bool(columns) and not column["spread"] and len(measured) > 1
        is_constant = may_be_constant and _is_constant(column["name"], read, measured)
        (constant if is_constant else columns).append(column)
    shared = [f"{column['title']} {as_shown(measured[0][column['name']], column, measured[0])}" for column in constant]
    figures = [column["name"] for column in columns if column["kind"] == "figure"]
    groups = _neighbours(read, figures) if fold else [[row] for row in read]
    remarks: list[str] = []
    shown = groups[-most_rows:]
    lines = [line(markdown_text(column["title"]) for column in columns), "|" + ":---|" * len(columns)]
    lines += [line(_markdown_row(_folded(group, columns), columns, remarks)) for group in shown]
    parts = [
        markdown_text(f"In every measured row: {'; '.join(shared)}.") if shared else "",
        "\n".join(lines),
        f"The last {len(shown)} of {len(groups)} rows; the CSV has all." if len(shown) < len(groups) else "",
        "\n".join(f"[{number}] {markdown_text(text)}  " for number, text in enumerate(remarks, start=1)),
        "\n".join(f"{note}  " for note in description["notes"]),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _small_in_mib(columns: Sequence[dict[str, Any]], rows: Sequence[dict[str, str]]) -> None:
    """Convert figures, spreads and titles from GiB to MiB, in place, if all memory of the table is small."""
    memory = [column for column in columns if "(GiB)" in column["title"] and column["kind"] == "figure"]
    sizes = [as_number(row[column["name"]]) for row in rows for column in memory]
    if max((gib for gib in sizes if gib is not None), default=LEAST_GIB) >= LEAST_GIB:
        return
    for column in memory:
        column["title"] = column["title"].replace("(GiB)", "(MiB)")
        for row in rows:
            for name in {column["name"], column["spread"]} & row.keys():
                if (gib := as_number(row[name])) is not None:
                    row[name] = repr(gib * 1024)


def _is_constant(name: str, rows: Sequence[Mapping[str, str]], measured: Sequence[Mapping[str, str]]) -> bool:
    """Return whether all measured rows have one value, and other rows that value or their status."""
    levels = {row[name] for row in measured}
    return len(levels) == 1 and all(row[name] in levels or row[name] == row["status"] for row in rows)


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Read the CSV's rows as text; if environments differ, a flag names that of each measured row."""
    rows: list[dict[str, str]] = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    measured = [row for row in rows if row["status"] == "ok" and row["environment"] != NOTHING]
    several = len({row["environment"] for row in measured}) > 1
    folder = path.parent.parent / "environments"
    machines = {
        ids: f"environment {ids} ({devices_of(ids, folder)})" for ids in {row["environment"] for row in measured}
    }
    for row in rows:
        row |= {name: "" for name in ("reason", "flags") if row[name] == NOTHING}
        if several and row in measured:
            row["flags"] = "; ".join(filter(None, [row["flags"], machines[row["environment"]]]))
    return rows


def _neighbours(rows: Sequence[dict[str, str]], figures: Sequence[str]) -> list[list[dict[str, str]]]:
    """Group adjacent rows that lack figures for the same reason; any other row is a group by itself."""

    def kind(row: Mapping[str, str]) -> tuple[str, str] | None:
        has_none = row["status"] != "ok" and all(row[name] == row["status"] for name in figures)
        return (row["status"], row["reason"]) if has_none else None

    groups: list[list[dict[str, str]]] = []
    for lacking, neighbours in groupby(rows, kind):
        group = list(neighbours)
        groups += [group] if lacking and len(group) >= FOLDED_FROM else [[row] for row in group]
    return groups


def in_words(status: str, reason: str) -> str:
    """Reason as part of a sentence: a count such as "1 GPU" becomes "on a machine with 1 GPU"."""
    too_small = status == "skipped" and re.fullmatch(r"\d+ (GPU|node|process)(s|es)?", reason)
    return f"on a {'cluster' if reason.endswith('nodes') else 'machine'} with {reason}" if too_small else reason


def _folded(group: Sequence[Mapping[str, str]], columns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Merge a group into one row that lists every level of a column."""
    if len(group) == 1:
        return dict(group[0])
    levels = {column["name"]: list(dict.fromkeys(row[column["name"]] for row in group)) for column in columns}
    unlike = {c["name"]: ["see CSV"] for c in columns if c["kind"] == "published" and len(levels[c["name"]]) > 1}
    shown = {name: ", ".join(texts) for name, texts in (levels | unlike).items()}
    reason = f"{in_words(group[0]['status'], group[0]['reason'])} ({len(group)} cells)"
    return shown | {"status": group[0]["status"], "reason": reason, "flags": "", "environment": ""}


def _markdown_row(row: Mapping[str, str], columns: Sequence[Mapping[str, Any]], remarks: list[str]) -> list[str]:
    """Cells of a row; its remark is added to `remarks`, and its footnote number to the row's first figure."""
    lacking = row["status"] != "ok"
    remark = f"{row['status']}: {in_words(row['status'], row['reason'])}" if lacking else row["flags"]
    if remark and remark not in remarks:
        remarks.append(remark)
    mark = f" [{remarks.index(remark) + 1}]" if remark else ""
    shown, marked = [], not remark
    for column in columns:
        is_figure = column["kind"] == "figure"
        text = as_shown(row[column["name"]], column, row)
        marks_here = is_figure and (row[column["name"]] == row["status"] if lacking else not marked)
        shown.append(markdown_text(text) + (mark if marks_here else ""))
        marked = marked or marks_here
    return shown if marked else [shown[0] + mark, *shown[1:]]
