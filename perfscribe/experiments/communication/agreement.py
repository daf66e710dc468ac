"""Whether the torch profiler and nsys agree on the communication of the same training."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.communication import rows as r
from perfscribe.findings import CannotTell
from perfscribe.statistics import format_figure

COMPARED = {r.TOTAL: "total", r.SHARE: "share of device time", r.MEAN: "mean latency", r.TRANSFER: "transfer"}


def tools(frame: pd.DataFrame) -> str:
    """Each figure by nsys over that by the torch profiler, and whether they differ by more than turns do.

    frame: the table of metrics, cells that are not ok too. CannotTell, with the reason of the cell that lacks.
    """
    found = [_cell(f"{backend}, {how}", own) for (backend, how), own in frame.groupby(["backend", "implementation"])]
    texts = [text for text, told in found if told]
    if not texts:
        raise CannotTell("; ".join(text for text, _ in found) or "no cell of two ranks was planned")
    return (
        f"{' '.join(texts)} Each tool traced runs of its own, so that what the runs differ by is in these ratios; both "
        "take the kernels' times from the GPU's own clock, and nsys stands around all ranks where the torch profiler "
        "is a part of each."
    )


def _cell(name: str, own: pd.DataFrame) -> tuple[str, bool]:
    """The sentence of a cell, or what is lacking and False."""
    by_tool = {tool: own[own["tool"] == tool] for tool in r.TOOLS}
    for tool, rows in by_tool.items():
        lost = rows[rows["status"] != "ok"]
        if rows.empty or len(lost):
            why = f"{lost['status'].iloc[0]}, {lost['reason'].iloc[0]}" if len(lost) else "not planned"
            return f"with {name} {r.TOOLS[tool]} gave nothing ({why})", False
    pairs = {metric: [_row(rows, metric) for rows in by_tool.values()] for metric in (*COMPARED, r.CALLS)}
    parts = [_placement(placement, words, pairs) for placement, words in WHERE.items()]
    return f"With {name} nsys, against the torch profiler: {'; '.join(parts)}.", True


WHERE = {r.INTER: "across nodes", r.INTRA: "within a node"}


def _row(rows: pd.DataFrame, metric: str) -> Any:
    return rows[rows["metric"] == r.METRICS[metric]].iloc[0]


def _placement(placement: str, words: str, pairs: dict[str, list[Any]]) -> str:
    torch_calls, nsys_calls = (row[placement] for row in pairs[r.CALLS])
    calls = f"{nsys_calls} calls each" if torch_calls == nsys_calls else f"{nsys_calls} calls against {torch_calls}"
    return f"{words} {calls}, {', '.join(_ratio(placement, metric, pairs[metric]) for metric in COMPARED)}"


def _ratio(placement: str, metric: str, pair: list[Any]) -> str:
    """One over the other, and whether their difference is that of a tool's own turns."""
    by_torch, by_nsys = (float(row[placement]) for row in pair)
    if not by_torch:
        return f"{COMPARED[metric]} none by the torch profiler"
    spread = max((_number(row[f"{placement}_spread"]) for row in pair), default=0.0)
    apart = "apart by more than turns are" if abs(by_nsys - by_torch) > spread else "within the turns' spread"
    return f"{COMPARED[metric]} {format_figure(by_nsys / by_torch)} times ({apart})"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
