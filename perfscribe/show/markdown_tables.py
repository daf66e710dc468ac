"""Tables as Markdown, from their files: figures rounded by their spread, statuses with footnotes, long gaps folded."""

from __future__ import annotations

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
from perfscribe.show.tables import NOTHING

# From how many neighbouring rows on that lack figures for one reason the report shows one row for all.
FOLDED_FROM = 3
# Published figures stand as their source prints them; those with more digits, as after a conversion, are rounded.
LONGEST_PUBLISHED_DIGITS, PUBLISHED_DIGITS = 7, 5
EMPTY_NOTE = "No cell of the plan belongs in this table."
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def as_number(text: str) -> float | None:
    """The finite number that a text is; None for any other text, though Python read it as one (nan, 1_0, 1e999)."""
    figure = float(text) if _NUMBER.fullmatch(text) else math.nan
    return figure if math.isfinite(figure) else None


def as_shown(text: str, column: Mapping[str, Any], row: Mapping[str, str]) -> str:
    """The text of a CSV's cell as a page shows it; a figure with its spread."""
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
    """Text for a cell of a Markdown table: one line, with pipes and what would pass for an HTML tag escaped."""
    line = " ".join(text.split()).replace("<", "&lt;")
    return re.sub(r"(\\*)\|", r"\1\1\\|", line)  # a backslash before a pipe would undo the pipe's own


def of_texts(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """A Markdown table of texts and whole numbers, whatever signs are in them."""
    cells = [[markdown_text(str(cell)) for cell in row] for row in rows]
    return tabulate(cells, [markdown_text(head) for head in heads], tablefmt="pipe", disable_numparse=True)


def line(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def to_markdown(folder: Path, table_id: str, most_rows: int = 0, fold: bool = True) -> str:
    """The table as Markdown from its files: figures with half their interquartile range, remarks and notes below.

    most_rows: beyond which the rest stands in the CSV alone; 0: all. What is the same in every measured row stands in a
    line above; fold: neighbouring rows that lack figures for one reason are one row with all their levels.
    """
    description = files.read_json(folder / f"{table_id}.json")
    read = _read_rows(folder / f"{table_id}.csv")
    if not read:
        return f"{EMPTY_NOTE}\n"
    measured = [row for row in read if row["status"] == "ok"]
    spreads = {column["spread"] for column in description["columns"] if column["spread"]}
    columns: list[dict[str, Any]] = []
    constant: list[dict[str, Any]] = []
    for column in description["columns"]:
        is_unpublished = column["kind"] == "published" and {row[column["name"]] for row in read} == {NOTHING}
        if is_unpublished or column["kind"] in ("setting", "unshown") or column["name"] in spreads:
            continue
        told_once = bool(columns) and not column["spread"] and len(measured) > 1
        same = told_once and _is_constant(column["name"], read, measured)
        (constant if same else columns).append(column)
    told = [f"{one['title']} {as_shown(measured[0][one['name']], one, measured[0])}" for one in constant]
    figures = [column["name"] for column in columns if column["kind"] == "figure"]
    groups = _neighbours(read, figures) if fold else [[row] for row in read]
    remarks: list[str] = []
    shown = groups[-most_rows:]
    lines = [line(markdown_text(column["title"]) for column in columns), "|" + ":---|" * len(columns)]
    lines += [line(_markdown_row(_folded(group, columns), columns, remarks)) for group in shown]
    parts = [
        markdown_text(f"In every measured row: {'; '.join(told)}.") if told else "",
        "\n".join(lines),
        f"The last {len(shown)} of {len(groups)} rows; the CSV has all." if len(shown) < len(groups) else "",
        "\n".join(f"[{number}] {markdown_text(text)}  " for number, text in enumerate(remarks, start=1)),
        "\n".join(f"{note}  " for note in description["notes"]),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _is_constant(name: str, rows: Sequence[Mapping[str, str]], measured: Sequence[Mapping[str, str]]) -> bool:
    """Whether all measured rows hold the same, and the others nothing else."""
    levels = {row[name] for row in measured}
    return len(levels) == 1 and all(row[name] in levels or row[name] == row["status"] for row in rows)


def _read_rows(path: Path) -> list[dict[str, str]]:
    """The CSV's rows as text; figures of different environments are told apart by a flag."""
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
    """Rows grouped where neighbours lack figures for the same reason; a row with any figure is a group of its own."""

    def kind(row: Mapping[str, str]) -> tuple[str, str] | None:
        has_none = row["status"] != "ok" and all(row[name] == row["status"] for name in figures)
        return (row["status"], row["reason"]) if has_none else None

    found: list[list[dict[str, str]]] = []
    for lacking, neighbours in groupby(rows, kind):
        group = list(neighbours)
        found += [group] if lacking and len(group) >= FOLDED_FROM else [[row] for row in group]
    return found


def in_words(status: str, reason: str) -> str:
    """The reason as a sentence's part: what a machine that is too small has is no reason by itself."""
    too_small = status == "skipped" and re.fullmatch(r"\d+ (GPU|node)s?", reason)
    return f"on a {'cluster' if reason.endswith('nodes') else 'machine'} with {reason}" if too_small else reason


def _folded(group: Sequence[Mapping[str, str]], columns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """One row for a group: every level that a column holds in it."""
    if len(group) == 1:
        return dict(group[0])
    levels = {column["name"]: list(dict.fromkeys(row[column["name"]] for row in group)) for column in columns}
    unlike = {c["name"]: ["see CSV"] for c in columns if c["kind"] == "published" and len(levels[c["name"]]) > 1}
    shown = {name: ", ".join(found) for name, found in (levels | unlike).items()}
    reason = f"{in_words(group[0]['status'], group[0]['reason'])} ({len(group)} cells)"
    return shown | {"status": group[0]["status"], "reason": reason, "flags": "", "environment": ""}


def _markdown_row(row: Mapping[str, str], columns: Sequence[Mapping[str, Any]], remarks: list[str]) -> list[str]:
    """The row's cells; its remark is added to remarks, and its number stands at the row's first figure."""
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
