"""Rows of the tables: a cell's record taken apart by figure, placement and rank; rates; trainings of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from perfscribe.analytic.traffic import busbw_gb_per_s
from perfscribe.distributed.transport import DEFAULT, TRANSPORTS
from perfscribe.instruments.statistics import format_figure, ratio
from perfscribe.records.records import Record

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
ALONE = "all-reduce alone"
NEITHER = "neither"
NOT_KNOWN, NO_LINK = "not known", "no link, the host's memory"
TRAININGS = {"plain": "no", "first_profiled": "yes, the process's first profile", "profiled": "yes, a later profile"}
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


def bandwidth(records: Iterable[Record], all_reduce: Iterable[Record]) -> list[Record]:
    """One record a cell and placement, then the plain all-reduces between two processes of the same backends."""
    own = of_placements(records)
    backends = {record.factors["backend"] for record in own}
    found = [_training_rate(record, placement) for record in own for placement in PLACEMENTS]
    plain = [one for one in all_reduce if one.factors["operation"] == "all_reduce" and one.factors["world_size"] == 2]
    known = [_rated(record, INTRA) for record in own if record.ok]
    rated = next((one for one in known if not isinstance(one["rated_gb_per_s"], str)), _in_place(NOT_KNOWN))
    shown = [one for one in plain if one.ok and one.factors["backend"] in backends]
    return found + [_plain_rate(one, rated) for one in shown]


def _what(record: Record) -> str:
    return f"training, {record.factors['implementation']}, by {TOOLS[record.factors['tool']]}"


def _training_rate(record: Record, placement: str) -> Record:
    factors = place(record, placement) | {"what": _what(record)}
    row = replace(record, factors=factors, samples={}, values={})
    count = calls(record, placement) if record.ok else None
    if not record.ok:
        return row
    sent = float(record.values["gradient_bytes"]) * record.factors["active"]
    transfer, total = (median(turns(record, f"{placement}_{name}")) for name in ("transfer_ms", "rank0_total_ms"))
    rated = _rated(record, placement)
    rate, with_waiting = (busbw_gb_per_s("all_reduce", RANKS, round(sent), ms) for ms in (transfer, total))
    time_ms: float | str = transfer / count if count else "calls differ"
    row.values = {
        "message_mb": sent / count / 1e6 if count else "calls differ",
        "time_ms": time_ms,
        "gb_per_s": rate,
        "with_waiting_gb_per_s": with_waiting,
        "with_waiting_gb_per_s_spread": _spread_of_rates(record, placement, sent),
        **_of_rated(rate, rated),
    }
    row.values |= _spreads(row.values, turns(record, f"{placement}_transfer_ms"))
    return row


def _spreads(values: Mapping[str, Any], times: Sequence[float]) -> dict[str, float | str]:
    """How far the time, its rate and the rate's share may be trusted: each as far, relatively, as these times are."""
    width = iqr(times)
    share = width if isinstance(width, str) else width / median(times)
    return {
        f"{name}_spread": share if isinstance(share, str) else values[name] * share
        for name in ("time_ms", "gb_per_s", "rated_percent")
        if not isinstance(values[name], str)
    }


def _spread_of_rates(record: Record, placement: str, sent: float) -> float | str:
    """Interquartile range over turns of the rate with rank 0's waiting counted, which spreads as waiting does."""
    totals = turns(record, f"{placement}_rank0_total_ms")
    return iqr([busbw_gb_per_s("all_reduce", RANKS, round(sent), ms) for ms in totals])


def _in_place(text: str) -> dict[str, float | str]:
    """A text where a link's rate and its source would stand."""
    return {"rated_gb_per_s": text, "rated_by": text}


def _rated(record: Record, placement: str) -> dict[str, float | str]:
    """What the link is rated at, each way, and who says so."""
    if link(record, placement) == TCP:
        return _in_place(NO_LINK)
    found = record.values.get(f"{placement}_rated_gb_per_s")
    if found is None:
        return _in_place(NOT_KNOWN)
    return {"rated_gb_per_s": float(found), "rated_by": record.values[f"{placement}_rated_by"]}


def _of_rated(rate: float, rated: dict[str, float | str]) -> dict[str, float | str]:
    most = rated["rated_gb_per_s"]
    return rated | {"rated_percent": most if isinstance(most, str) else 100 * rate / most}


def _way(record: Record) -> str:
    """What joins the two processes of a plain all-reduce, in words."""
    asked = str(record.factors["transport"])
    if record.factors["backend"] == "gloo" or asked == "tcp":
        return TCP
    return (
        TRANSPORTS[asked][0] if asked != DEFAULT else f"NCCL's choice ({record.values.get('connections', 'not told')})"
    )


def _plain_rate(record: Record, of_nvlink: dict[str, float | str]) -> Record:
    way = _way(record)
    factors = {**record.factors, "what": ALONE, "placement": NEITHER, "implementation": ALONE, "link": way}
    row = replace(record, factors=factors, samples={}, values={})
    times = turns(record, "time_ms")
    time_ms = median(times)
    sent = int(record.values["message_bytes"])
    rated = _in_place(NO_LINK) if way in (TCP, TRANSPORTS["shm"][0]) else of_nvlink
    rate = busbw_gb_per_s("all_reduce", RANKS, sent, time_ms)
    row.values = {
        "message_mb": sent / 1e6,
        "time_ms": time_ms,
        "gb_per_s": rate,
        "with_waiting_gb_per_s": "ranks begin together",
        **_of_rated(rate, rated),
    }
    row.values |= _spreads(row.values, times)
    return row


def trainings(records: Iterable[Record]) -> list[Record]:
    """One record a single-rank cell and way to train."""
    found = []
    for record in (one for one in records if one.factors["part"] == "profiler"):
        for name, profiled in TRAININGS.items():
            row = replace(record, factors={**record.factors, "profiled": profiled}, samples={}, values={})
            if record.ok:
                row.samples["train_s"] = record.samples[f"{name}_train_s"]
                row.timers = {"train_s": record.timers.get(f"{name}_train_s", "host clock")}
                plain, own = turns(record, "plain_train_s"), turns(row, "train_s")
                trained = median(own)
                row.values["longer_s"] = "itself" if name == "plain" else trained - median(plain)
                row.values["longer_s_spread"] = "itself" if name == "plain" else iqr_of_difference(own, plain)
                row.values["epoch_s"] = trained / record.factors["epochs"]
            found.append(row)
    return found
