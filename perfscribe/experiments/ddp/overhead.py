"""The handout's overhead model fitted to what the bucket sizes left exposed: rows of points, and the best size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.ddp.rows import of_cells
from perfscribe.parallel.bucket_model import (
    BYTES_PER_MB,
    OverheadFit,
    best_bucket_bytes,
    best_bucket_count,
    fit_overhead,
    overhead_s,
)
from perfscribe.records import Record

NO_FIT = "too few numbers of buckets"
NOT_TOLD = "no fit: no exposed time is told from 0"
NO_MODEL = "no fit: residuals above half of the exposed times"
MOST_RESIDUAL = 0.5  # of what is exposed, both root mean square
NO_OPTIMUM = "no optimum in this range"
GB_PER_S = 1e9


def points(rows: Iterable[Record]) -> list[Record]:
    """The rows of bucket sizes and of single gradients (a bucket each), with the model of their cell beside them."""
    chosen = [row for row in rows if row.factors["implementation"] in (v.OVERLAP, v.BUCKETED)]
    return [one for group in of_cells(chosen) for one in _with_model(group)]


def _with_model(group: list[Record]) -> list[Record]:
    measured = [row for row in group if row.ok]
    if not measured:
        return group
    total = float(measured[0].values["gradient_bytes"])
    found = [(int(row.values["all_reduces"]), row.values["exposed_ms"] / 1e3) for row in measured]
    if len({count for count, _ in found}) < 2:
        return _without_fit(group, NO_FIT)
    if all(_may_be_none(row) for row in measured):
        return _without_fit(group, NOT_TOLD)
    fit = fit_overhead(total, found)
    if _rms(fit.residuals_s) > MOST_RESIDUAL * _rms([seconds for _, seconds in found]):
        return _without_fit(group, NO_MODEL)
    best = min(measured, key=lambda row: float(row.values["exposed_ms"]))
    return [replace(row, values={**row.values, **_named(row, total, fit, best, measured)}) for row in group]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in values) / len(values))


def _may_be_none(row: Record) -> bool:
    """Whether the interval of exposed communication holds 0."""
    low, high = row.values["exposed_low_ms"], row.values["exposed_high_ms"]
    return isinstance(low, float) and isinstance(high, float) and low <= 0 <= high


def _without_fit(group: list[Record], why: str) -> list[Record]:
    names = ("model_ms", "residual_ms", "bandwidth", "call_us", "best_buckets", "best_bucket_mb", "found_bucket")
    return [
        replace(row, values={**row.values, "bucket_count": row.values["all_reduces"], **dict.fromkeys(names, why)})
        if row.ok
        else row
        for row in group
    ]


def _named(row: Record, total: float, fit: OverheadFit, best: Record, group: list[Record]) -> dict[str, Any]:
    count = int(row.values["all_reduces"])
    model_ms = 1e3 * overhead_s(total, count, fit.bytes_per_s, fit.call_s)
    rates = (fit.bytes_per_s, fit.call_s)
    return {
        "bucket_count": count,
        "model_ms": model_ms,
        "residual_ms": row.values["exposed_ms"] - model_ms,
        "bandwidth": fit.bytes_per_s / GB_PER_S if fit.bytes_per_s < float("inf") else "no such term",
        "call_us": fit.call_s * 1e6 if fit.call_s > 0 else "no such term",
        "best_buckets": best_bucket_count(total, *rates) if fit.has_optimum else NO_OPTIMUM,
        "best_bucket_mb": best_bucket_bytes(total, *rates) / BYTES_PER_MB if fit.has_optimum else NO_OPTIMUM,
        "found_bucket": bucket_name(best) + _not_told_apart(best, group),
    }


def _not_told_apart(best: Record, group: list[Record]) -> str:
    """How many others expose what lies within the interval of the least."""
    high = best.values["exposed_high_ms"]
    if not isinstance(high, float):
        return ""
    others = sum(row is not best and float(row.values["exposed_ms"]) <= high for row in group)
    return f" (not told apart from {others} of {len(group) - 1} others)" if others else ""


def bucket_name(row: Record) -> str:
    """10 MB, or what stands for no bucket."""
    size = row.factors["bucket_mb"]
    return f"{size:g} MB" if isinstance(size, (int, float)) else "one gradient each"
