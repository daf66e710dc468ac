"""Rates over the links: of training's gradients, and of plain all-reduces beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from perfscribe.counters.traffic import busbw_gb_per_s
from perfscribe.experiments.communication import rows
from perfscribe.parallel.transport import DEFAULT, TRANSPORTS
from perfscribe.records import Record

ALONE = "all-reduce alone"
NEITHER = "neither"
NOT_KNOWN, NO_LINK = "not known", "no link, the host's memory"


def bandwidth(records: Iterable[Record], all_reduce: Iterable[Record]) -> list[Record]:
    """One record a cell and placement, then the plain all-reduces between two processes of the same backends."""
    own = rows.of_placements(records)
    backends = {record.factors["backend"] for record in own}
    found = [_training_rate(record, placement) for record in own for placement in rows.PLACEMENTS]
    plain = [one for one in all_reduce if one.factors["operation"] == "all_reduce" and one.factors["world_size"] == 2]
    known = [_rated(record, rows.INTRA) for record in own if record.ok]
    rated = next((one for one in known if not isinstance(one["rated_gb_per_s"], str)), _in_place(NOT_KNOWN))
    shown = [one for one in plain if one.ok and one.factors["backend"] in backends]
    return found + [_plain_rate(one, rated) for one in shown]


def _what(record: Record) -> str:
    return f"training, {record.factors['implementation']}, by {rows.TOOLS[record.factors['tool']]}"


def _training_rate(record: Record, placement: str) -> Record:
    factors = rows.place(record, placement) | {"what": _what(record)}
    row = replace(record, factors=factors, samples={}, values={})
    count = rows.calls(record, placement) if record.ok else None
    if not record.ok:
        return row
    sent = float(record.values["gradient_bytes"]) * record.factors["active"]
    transfer, total = (median(rows.turns(record, f"{placement}_{name}")) for name in ("transfer_ms", "rank0_total_ms"))
    rated = _rated(record, placement)
    rate, with_waiting = (busbw_gb_per_s("all_reduce", rows.RANKS, round(sent), ms) for ms in (transfer, total))
    time_ms: float | str = transfer / count if count else "calls differ"
    row.values = {
        "message_mb": sent / count / 1e6 if count else "calls differ",
        "time_ms": time_ms,
        "gb_per_s": rate,
        "with_waiting_gb_per_s": with_waiting,
        "with_waiting_gb_per_s_spread": _spread_of_rates(record, placement, sent),
        **_of_rated(rate, rated),
    }
    row.values |= _spreads(row.values, rows.turns(record, f"{placement}_transfer_ms"))
    return row


def _spreads(values: Mapping[str, Any], times: Sequence[float]) -> dict[str, float | str]:
    """How far the time, its rate and the rate's share may be trusted: each as far, relatively, as these times are."""
    width = rows.iqr(times)
    share = width if isinstance(width, str) else width / median(times)
    return {
        f"{name}_spread": share if isinstance(share, str) else values[name] * share
        for name in ("time_ms", "gb_per_s", "rated_percent")
        if not isinstance(values[name], str)
    }


def _spread_of_rates(record: Record, placement: str, sent: float) -> float | str:
    """Interquartile range over turns of the rate with rank 0's waiting counted, which spreads as waiting does."""
    totals = rows.turns(record, f"{placement}_rank0_total_ms")
    return rows.iqr([busbw_gb_per_s("all_reduce", rows.RANKS, round(sent), ms) for ms in totals])


def _in_place(text: str) -> dict[str, float | str]:
    """A text where a link's rate and its source would stand."""
    return {"rated_gb_per_s": text, "rated_by": text}


def _rated(record: Record, placement: str) -> dict[str, float | str]:
    """What the link is rated at, each way, and who says so."""
    if rows.link(record, placement) == rows.TCP:
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
        return rows.TCP
    return (
        TRANSPORTS[asked][0] if asked != DEFAULT else f"NCCL's choice ({record.values.get('connections', 'not told')})"
    )


def _plain_rate(record: Record, of_nvlink: dict[str, float | str]) -> Record:
    way = _way(record)
    factors = {**record.factors, "what": ALONE, "placement": NEITHER, "implementation": ALONE, "link": way}
    row = replace(record, factors=factors, samples={}, values={})
    times = rows.turns(record, "time_ms")
    time_ms = median(times)
    sent = int(record.values["message_bytes"])
    rated = _in_place(NO_LINK) if way in (rows.TCP, TRANSPORTS["shm"][0]) else of_nvlink
    rate = busbw_gb_per_s("all_reduce", rows.RANKS, sent, time_ms)
    row.values = {
        "message_mb": sent / 1e6,
        "time_ms": time_ms,
        "gb_per_s": rate,
        "with_waiting_gb_per_s": "ranks begin together",
        **_of_rated(rate, rated),
    }
    row.values |= _spreads(row.values, times)
    return row
