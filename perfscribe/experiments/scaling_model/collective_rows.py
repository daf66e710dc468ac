"""Rows of the collectives: what each algorithm makes of measured calls, and all-reduces of some sizes over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfscribe.counters.traffic import busbw_gb_per_s
from perfscribe.experiments.scaling_model.links import ModelledLinks, calls_of, logged
from perfscribe.experiments.scaling_model.rows import NOT_MEASURED, backends
from perfscribe.node_network import ALL_REDUCE
from perfscribe.records import Record
from perfscribe.scaling import reach as of
from perfscribe.scaling.collectives import (
    PHASES,
    RING,
    TREE,
    Call,
    CollectiveFit,
    fits,
    is_judged,
    largest_left_out,
)

SIZES_MB = (1, 10, 100, 1024)
SIZE_FACTOR = 8  # beyond as many times the largest measured message nothing but the model speaks
NO_GROWTH = "none: no growth with size"
NOT_JUDGED = "none: one count"
TOO_FEW = "too few sizes were measured"


def fitted(records: Sequence[Record]) -> list[Record]:
    """One record a backend and collective."""
    return [_fit_row(records, operation, backend) for backend in backends(records) for operation in PHASES]


def _base(records: Sequence[Record], factors: dict[str, Any], **wanted: Any) -> Record:
    """A row of the cells with these levels: of the measured ones, or else with what kept them from it."""
    same = [record for record in records if record.has(**wanted)] or list(records)
    good = [record for record in same if record.ok]
    first = (good or same)[0]
    cleared: dict[str, Any] = {"samples": {}, "warmup": {}, "series": {}, "timers": {}, "values": {}}
    flags = sorted({flag for record in good for flag in record.flags})
    environments = sorted({name for record in good for name in record.environments}) or first.environments
    return replace(first, factors=factors, flags=flags, environments=environments, **cleared)


def _fit_row(records: Sequence[Record], operation: str, backend: str) -> Record:
    factors = {"operation": operation, "backend": backend}
    row = _base(records, factors, operation=operation, backend=backend, transport="default")
    calls = calls_of(records, operation, backend)
    said = logged(records, operation, backend)
    found = fits(operation, calls, said)
    if not found:
        return replace(row, status="not_run", reason=TOO_FEW) if row.ok else row
    row.values = _fit_values(found, calls) | {"logged": said or f"{backend} does not tell"}
    row.values["chosen"] = _chosen(found[0], said)
    return replace(row, origin=of.PREDICTED)


def _fit_values(found: Sequence[CollectiveFit], calls: Sequence[Call]) -> dict[str, Any]:
    chosen = found[0]
    values: dict[str, Any] = {
        "counts": ", ".join(map(str, chosen.counts)),
        "points": len(chosen.calls),
        "bus_gb_per_s": NO_GROWTH if chosen.bus_gb_per_s is None else chosen.bus_gb_per_s,
        "worst_percent": 100 * max(chosen.residuals, key=abs),
    }
    for fit in found:
        left_out = largest_left_out(fit.operation, fit.algorithm, calls)
        values[f"{fit.algorithm}_hop_us"] = 1e3 * fit.hop_ms
        values[f"{fit.algorithm}_percent"] = 100 * fit.rms
        values[f"{fit.algorithm}_left_out_percent"] = NOT_JUDGED if left_out is None else 100 * left_out
    return values


def _chosen(first: CollectiveFit, said: str) -> str:
    """The algorithm that is assumed, and why where residuals did not judge."""
    if is_judged(first.counts):
        return first.algorithm
    if first.algorithm == said.lower():
        return f"{first.algorithm}: by NCCL's log"
    return f"{first.algorithm}: not judged by {'one count' if len(first.counts) == 1 else 'two counts'}"


def over_ranks(records: Sequence[Record], links: ModelledLinks) -> list[Record]:
    """All-reduces of each size among each number of ranks, of the backend for GPUs where that was measured."""
    known = [name for name in backends(records) if links.fit(ALL_REDUCE, name) is not None]
    if not known:
        if not records:
            return []
        row = _base(records, _place(NOT_MEASURED, "all", "all", NOT_MEASURED))
        return [replace(row, status="not_run", reason=TOO_FEW) if row.ok else row]
    backend = known[0]
    own = [r for r in records if r.ok and r.has(operation=ALL_REDUCE, backend=backend, transport="default")]
    unit = int(own[0].values["megabyte_bytes"])
    calls = calls_of(own, ALL_REDUCE, backend)
    found = fits(ALL_REDUCE, calls, logged(own, ALL_REDUCE, backend))
    rows = []
    for size_mb in SIZES_MB:
        measured = {call.ranks: call.time_ms for call in calls if _is_of_size(call, size_mb * unit)}
        for ranks in of.counts(measured, least=2):
            values = _times(links, found, backend, ranks, size_mb * unit, measured)
            reached = _reach(ranks, size_mb * unit, calls, measured)
            row = _base(own, _place(backend, size_mb, ranks, reached))
            rows.append(replace(row, values=values, origin=of.MEASURED if ranks in measured else of.PREDICTED))
    return rows


def _is_of_size(call: Call, size_bytes: int) -> bool:
    """Whether it sent that many: less by what does not divide evenly, an fp32 element for each rank at most."""
    return 0 <= size_bytes - call.message_bytes < 4 * call.ranks


def _place(backend: str, size_mb: Any, ranks: Any, reached: str) -> dict[str, Any]:
    origin = of.MEASURED if reached == of.MEASURED else of.PREDICTED
    if reached == NOT_MEASURED:
        origin = NOT_MEASURED
    return {"backend": backend, "size_mb": size_mb, "ranks": ranks, "reach": reached, "origin": origin}


def _reach(ranks: int, size_bytes: int, calls: Sequence[Call], measured: dict[int, float]) -> str:
    """By ranks and by size: what was measured among as many ranks may yet have been far smaller."""
    if ranks in measured:
        return of.MEASURED
    if size_bytes > SIZE_FACTOR * max(call.message_bytes for call in calls):
        return of.MODEL_ONLY
    found = of.reach(ranks, {call.ranks for call in calls})
    return of.PREDICTED if found == of.MEASURED else found


def _times(
    links: ModelledLinks,
    found: Sequence[CollectiveFit],
    backend: str,
    ranks: int,
    size_bytes: int,
    measured: dict[int, float],
) -> dict[str, Any]:
    """Of one message; found: both algorithms' models, the chosen one first."""
    chosen = found[0]
    times = {fit.algorithm: links.time_ms(fit, backend, ranks, size_bytes) for fit in found}
    modelled = times[chosen.algorithm]
    taken = measured.get(ranks, modelled)
    return {
        "time_ms": taken,
        "model_ms": modelled,
        "residual_percent": 100 * (taken / modelled - 1) if ranks in measured else NOT_MEASURED,
        "busbw_gb_per_s": busbw_gb_per_s(ALL_REDUCE, ranks, size_bytes, taken),
        "latency_percent": 100 * chosen.latency_ms(ranks) / modelled,
        f"{RING}_ms": times[RING],
        f"{TREE}_ms": times[TREE],
        "links": links.named(backend, ranks),
    }
