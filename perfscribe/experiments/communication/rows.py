"""Rows of the tables: a cell's record taken apart by figure, placement and rank, by message, by the profiler's "
"state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from perfscribe.parallel.transport import TRANSPORTS
from perfscribe.records import Record
from perfscribe.statistics import format_figure, ratio

TORCH_PROFILER, NSYS = "torch_profiler", "nsys"
TOOLS = {TORCH_PROFILER: "the torch profiler", NSYS: "nsys"}
INTRA, INTER = "intra", "inter"
PLACEMENTS = {INTER: (2, 1), INTRA: (1, 2)}
RANKS = 2
TOTAL, SHARE, MEAN, CALLS, TRANSFER, WAIT = "total_ms", "share_percent", "mean_ms", "calls", "transfer_ms", "wait_ms"
METRICS = {
    TOTAL: "Total communication time (ms)",
    SHARE: "Share of all device time (%)",
    MEAN: "Mean latency (ms)",
    CALLS: "Calls",
    TRANSFER: "Of it transfer (ms)",
    WAIT: "Of it waiting (ms)",
}
TCP = f"{TRANSPORTS['tcp'][0]}, of one machine"
TOO_FEW_TURNS, EXACT = "too few turns", "a count"


def of_placements(records: Iterable[Record]) -> list[Record]:
    """The cells of two ranks."""
    return [record for record in records if record.factors["part"] == "placements"]


def link(record: Record, placement: str) -> str:
    """What joins the two ranks, in words; gloo has TCP alone."""
    if record.factors["backend"] == "gloo" or placement == INTER:
        return TCP
    return f"NCCL's choice ({record.values.get('intra_link', 'not told')})" if record.ok else "NCCL's choice"


def turns(record: Record, name: str) -> list[float]:
    """One figure a turn, of all rounds."""
    return [sample for samples in record.samples[name] for sample in samples]


def calls(record: Record, placement: str) -> int | None:
    """Collectives of a turn; None where turns differ."""
    found = {int(count) for count in record.series[f"{placement}_calls"]}
    return found.pop() if len(found) == 1 else None


def metrics(records: Iterable[Record]) -> list[Record]:
    """One record a cell and figure: across nodes, within one, and the ratio. All are of rank 0, as the homework's."""
    return [_metric(record, metric) for record in of_placements(records) for metric in METRICS]


def _metric(record: Record, metric: str) -> Record:
    row = replace(record, factors={**record.factors, "metric": METRICS[metric]}, samples={}, values={})
    if not record.ok:
        return row
    across, within = (_series(record, placement, metric) for placement in (INTER, INTRA))
    row.values = {
        name: _counted(of) if metric == CALLS else median(of) for name, of in ((INTER, across), (INTRA, within))
    }
    row.values |= {
        f"{name}_spread": EXACT if metric == CALLS else iqr(of) for name, of in ((INTER, across), (INTRA, within))
    }
    row.values |= {"turns": len(across)} | impact(metric, across, within, calls(record, INTER), calls(record, INTRA))
    return row


def _series(record: Record, placement: str, metric: str) -> list[float]:
    """The figure in each turn, of rank 0."""
    if metric == CALLS:
        return [float(count) for count in record.series[f"{placement}_calls"]]
    if metric == TRANSFER:
        return turns(record, f"{placement}_transfer_ms")
    if metric == WAIT:
        return turns(record, f"{placement}_rank0_wait_ms")
    total = turns(record, f"{placement}_rank0_total_ms")
    if metric == SHARE:
        computed = turns(record, f"{placement}_rank0_compute_ms")
        return [100 * one / (one + other) for one, other in zip(total, computed, strict=True)]
    if metric == MEAN:
        counts = record.series[f"{placement}_calls"]
        # of several rounds only the first one's counts are kept; all of a cell must be alike to be compared anyhow
        return [one / counts[index % len(counts)] for index, one in enumerate(total)]
    return total


def _counted(counts: Sequence[float]) -> str:
    """A count as a text, so that it is not rounded as its column is; its range where turns differ."""
    low, high = int(min(counts)), int(max(counts))
    return f"{low}" if low == high else f"{low} to {high}"


def iqr(values: Sequence[float]) -> float | str:
    """Interquartile range of these; a text where there is one alone."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) if len(values) > 1 else "one sample"


def iqr_of_difference(one: Sequence[float], other: Sequence[float]) -> float | str:
    """How far a difference of two medians may be trusted: as far as both spread; a text where one is alone."""
    of_one, of_other = iqr(one), iqr(other)
    if isinstance(of_one, str) or isinstance(of_other, str):
        return "one sample"
    return of_one + of_other


def impact(
    metric: str, across: Sequence[float], within: Sequence[float], calls_across: int | None, calls_within: int | None
) -> dict[str, Any]:
    """Across nodes over within one, over turns; refused where the collectives are not equally many.

    What is not alike has no ratio: a different number of launches is different work, or other steps.
    """
    if calls_across is None or calls_within is None:
        return _instead("refused: calls differ from turn to turn")
    if calls_across != calls_within:
        return _instead(f"refused: {calls_across} calls against {calls_within}")
    if metric == CALLS:
        return _instead("equally many")
    if min(*across, *within) <= 0:
        return _instead("a turn without any")
    found = ratio([[one] for one in within], [[one] for one in across])
    if found.low is None or found.high is None:
        return _instead(TOO_FEW_TURNS) | {"impact": found.ratio}
    said = {"faster": "less", "slower": "more", "cannot tell": "cannot tell"}[found.verdict]
    interval = f"{format_figure(found.low)} to {format_figure(found.high)}"
    told = {"impact": found.ratio, "impact_interval": interval, "impact_verdict": said}
    # an interval of a ratio reaches further up than down; the shorter side is how fine the ratio can be read
    return told | {"impact_spread": min(found.high - found.ratio, found.ratio - found.low)}


def _instead(text: str) -> dict[str, Any]:
    return dict.fromkeys(("impact", "impact_interval", "impact_verdict"), text)


def ranks(records: Iterable[Record]) -> list[Record]:
    """One record a cell, placement and rank."""
    return [
        _of_rank(record, placement, rank)
        for record in of_placements(records)
        for placement in PLACEMENTS
        for rank in range(RANKS)
    ]


def place(record: Record, placement: str) -> dict[str, Any]:
    """The cell's factors and those of the placement."""
    nodes, ranks_per_node = PLACEMENTS[placement]
    own = {"placement": placement, "nodes": nodes, "ranks_per_node": ranks_per_node}
    return {**record.factors, **own, "link": link(record, placement)}


def _of_rank(record: Record, placement: str, rank: int) -> Record:
    begin = f"{placement}_rank{rank}_"
    samples = {name.removeprefix(begin): of for name, of in record.samples.items() if name.startswith(begin)}
    timers = {name.removeprefix(begin): of for name, of in record.timers.items() if name.startswith(begin)}
    row = replace(record, factors=place(record, placement) | {"rank": rank}, samples=samples, timers=timers, values={})
    if record.ok:
        samples["transfer_ms"] = record.samples[f"{placement}_transfer_ms"]
        totals, waits = (turns(row, name) for name in ("total_ms", "wait_ms"))
        row.values = {
            "wait_percent": 100 * sum(waits) / sum(totals),
            "wait_percent_spread": iqr([100 * wait / total for wait, total in zip(waits, totals, strict=True)]),
            "calls": calls(record, placement) or "not the same each turn",
        }
    return row


def operators(records: Iterable[Record]) -> list[Record]:
    """One record a line that is kept of each rank's key_averages; a line a placement where the cell is not ok."""
    found = []
    for record in (one for one in of_placements(records) if one.factors["tool"] == TORCH_PROFILER):
        for placement in PLACEMENTS:
            lines = record.series.get(f"{placement}_operators", []) if record.ok else [["", ""]]
            for rank, name, *figures in lines:
                factors = place(record, placement) | {"rank": rank, "operator": name}
                if not record.ok:
                    factors |= {"rank": "each", "operator": "each"}
                names = ("count", "self_cpu_ms", "cpu_ms", "self_device_ms", "device_ms")
                values = dict(zip(names, figures, strict=False))
                found.append(replace(record, factors=factors, samples={}, values=values))
    return found
