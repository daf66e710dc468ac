"""CSV exports of Weights & Biases: of a chart (a column a run, a row a step), of the table of runs (a row a run)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping

from perfscribe.importing.history import EVALUATION, TRAINED, History, summary_name

# Trainer's names in W&B: those of the evaluation stand below eval/, all others below train/.
LOGS = {"train/loss": "loss", **{f"eval/{name.removeprefix('eval_')}": name for name in EVALUATION}}
WHOLE = {f"train/{name}": to for name, to in TRAINED.items()}
STEPS = ("train/global_step", "Step", "_step")
EPOCH = "train/epoch"
BOUNDS = ("__MIN", "__MAX")  # of what a chart has smoothed or grouped
NAME = "Name"


def is_export(text: str) -> bool:
    """Whether the first line is one of such an export."""
    head = next(csv.reader(io.StringIO(text)), [])
    return NAME in head or (bool(set(STEPS) & set(head)) and len(head) > 1)


def parse(text: str, name: str) -> list[History]:
    """Every run that the file holds; ValueError, one line, where it is no table."""
    reader = csv.DictReader(io.StringIO(text))
    head = list(reader.fieldnames or [])
    if len(set(head)) != len(head):
        raise ValueError("two columns have the same name")
    rows = [{key: value or "" for key, value in row.items() if key is not None} for row in reader]
    return _of_runs(rows) if NAME in head else _of_chart(rows, head, name)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _of_runs(rows: list[dict[str, str]]) -> list[History]:
    """The table of runs: each row's columns are the last figures of a run."""
    found = []
    for number, row in enumerate(rows, start=1):
        history = History(row[NAME] or f"run {number}")
        told = {key: value for key, text in row.items() if (value := _number(text)) is not None}
        for key, value in told.items():
            own = WHOLE.get(key)
            name, unit = (own, 1.0) if own else summary_name(key)
            if "/" in key and own is None and name == key and not key.startswith("train/samples"):
                continue  # the last point of a curve is kept as that
            history.summary[name] = value * unit
        if EPOCH in told:
            history.summary["epochs"] = told[EPOCH]
        history.total_steps = int(told.get("train/global_step", 0))
        place = {"epoch": told[EPOCH]} if EPOCH in told else {}
        for wanted in ("train/loss", "eval/loss"):
            points = {LOGS[key]: told[key] for key in LOGS if key in told and key.split("/")[0] == wanted.split("/")[0]}
            if wanted in told:
                history.add(points | place, told.get("train/global_step"))
        found.append(history)
    return found


def _of_chart(rows: list[dict[str, str]], head: list[str], name: str) -> list[History]:
    """A chart: columns `<run> - <key>` over a column of steps, or `<key>` alone for a single run."""
    at = next((one for one in STEPS if one in head), "")
    columns = list(_columns(head, at))
    found: dict[str, History] = {}
    for row in rows:
        step = _number(row.get(at, ""))
        epoch = _number(row.get(EPOCH, ""))
        for run, points in _points(row, columns).items():
            history = found.setdefault(run or name, History(run or name))
            place = {"epoch": epoch} if epoch is not None else {}
            for kind in ("loss", "eval_loss"):
                own = {key: value for key, value in points.items() if key.startswith("eval_") == (kind == "eval_loss")}
                if kind in own:
                    history.add(own | place, step)
            history.total_steps = max(history.total_steps, int(step or 0))
    return list(found.values())


def _columns(head: list[str], at: str) -> Iterator[tuple[str, str, str]]:
    """Column, run and Trainer's name of each that holds a curve."""
    for column in head:
        run, dash, key = column.rpartition(" - ")
        if column != at and not column.endswith(BOUNDS) and key in LOGS:
            yield column, run if dash else "", LOGS[key]


def _points(row: Mapping[str, str], columns: list[tuple[str, str, str]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for column, run, key in columns:
        value = _number(row.get(column, ""))
        if value is not None:
            found.setdefault(run, {})[key] = value
    return found
