"""Whether the torch profiler and nsys agree on the communication of the same training."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.communication import rows as r
from perfscribe.findings import CannotTell
from perfscribe.statistics import format_figure

COMPARED = {r.TOTAL: "total", r.SHARE: "share of device time", r.MEAN: "mean latency", r.TRANSFER: "transfer"}


YES, NO, UNCLEAR = "yes", "no", "cannot tell"
WITHIN = {
    YES: "within the turns' spread",
    NO: "apart by more than turns are",
    UNCLEAR: "turns spread by more than the smaller of both",
}
WHERE = {r.INTER: "across nodes", r.INTRA: "within a node"}


def tools(frame: pd.DataFrame) -> tuple[str, str]:
    """Whether the tools agree, by placement; each figure by nsys over that by the torch profiler.

    frame: the table of metrics, cells that are not ok too. CannotTell, with the reason of the cell that lacks.
    """
    found = [_cell(f"{backend}, {how}", own) for (backend, how), own in frame.groupby(["backend", "implementation"])]
    told = [(text, judged) for text, judged in found if judged]
    if not told:
        raise CannotTell("; ".join(text for text, _ in found) or "no cell of two ranks was planned")
    text = (
        f"{' '.join(text for text, _ in told)} Each tool traced runs of its own, so that what the runs differ by is in "
        "these ratios; both take the kernels' times from the GPU's own clock, and nsys stands around all ranks where "
        "the torch profiler is a part of each."
    )
    unclear = all(one == UNCLEAR for _, judged in told for one in judged)
    return text, "cannot tell" if unclear else "answered"


def _cell(name: str, own: pd.DataFrame) -> tuple[str, list[str]]:
    """The sentences of a cell and what each placement says; or what is lacking and nothing."""
    by_tool = {tool: own[own["tool"] == tool] for tool in r.TOOLS}
    for tool, rows in by_tool.items():
        lost = rows[rows["status"] != "ok"]
        if rows.empty or len(lost):
            why = f"{lost['status'].iloc[0]}, {lost['reason'].iloc[0]}" if len(lost) else "not planned"
            return f"with {name} {r.TOOLS[tool]} gave nothing ({why})", []
    pairs = {metric: [_row(rows, metric) for rows in by_tool.values()] for metric in (*COMPARED, r.CALLS)}
    placements = [_placement(placement, words, pairs) for placement, words in WHERE.items()]
    judged = [one for _, one in placements]
    said = ", ".join(f"{words} {one}" for words, one in zip(WHERE.values(), judged, strict=True))
    opening = f"With {name}: {judged[0]}" if len(set(judged)) == 1 else f"With {name}: {said}"
    return f"{opening}. Nsys, against the torch profiler: {'; '.join(text for text, _ in placements)}.", judged


def _row(rows: pd.DataFrame, metric: str) -> Any:
    return rows[rows["metric"] == r.METRICS[metric]].iloc[0]


def _placement(placement: str, words: str, pairs: dict[str, list[Any]]) -> tuple[str, str]:
    """The placement's figures; NO where one of them is apart, UNCLEAR where one cannot be told."""
    torch_calls, nsys_calls = (row[placement] for row in pairs[r.CALLS])
    alike = torch_calls == nsys_calls
    calls = f"{nsys_calls} calls each" if alike else f"{nsys_calls} calls against {torch_calls}"
    ratios = [_ratio(placement, metric, pairs[metric]) for metric in COMPARED]
    judged = {one for _, one in ratios} | ({YES} if alike else {NO})
    verdict = next(one for one in (NO, UNCLEAR, YES) if one in judged)
    return f"{words} {calls}, {', '.join(text for text, _ in ratios)}", verdict


def _ratio(placement: str, metric: str, pair: list[Any]) -> tuple[str, str]:
    """One over the other, and whether their difference is that of a tool's own turns."""
    by_torch, by_nsys = (float(row[placement]) for row in pair)
    if not by_torch:
        return f"{COMPARED[metric]} none by the torch profiler", NO if by_nsys else YES
    spreads = [_number(row[f"{placement}_spread"]) for row in pair]
    spread = max(spreads)
    judged = NO if abs(by_nsys - by_torch) > spread else UNCLEAR if spread > min(by_torch, by_nsys) else YES
    ratio = by_nsys / by_torch
    # no finer than the turns of the tool that spreads more, as a share, leave it
    fine = max(width / one for width, one in zip(spreads, (by_torch, by_nsys), strict=True)) if by_nsys else 0.0
    return f"{COMPARED[metric]} {format_figure(ratio, ratio * fine)} times ({WITHIN[judged]})", judged


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
