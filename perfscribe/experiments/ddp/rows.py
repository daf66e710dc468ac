"""Rows of the tables: one record a cell and implementation, made of the cell's record, with what turns say of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from perfscribe.analytic.bucket_model import (
    BYTES_PER_MB,
    OverheadFit,
    best_bucket_bytes,
    fit_overhead,
    overhead_s,
)
from perfscribe.base.files import canonical
from perfscribe.experiments.ddp import variants as v
from perfscribe.instruments.interleaving import split
from perfscribe.instruments.statistics import format_figure, median_interval
from perfscribe.records.records import Record
from perfscribe.show import tables as t

# What tells cells apart.
OF_CELL = ("variants", "size", "seq_len", "batch", "world_size", "backend", "dtype")
NO_BUCKETS = "none"
TOO_FEW_TURNS = "too few turns"
NO_FIT = "too few numbers of buckets"
NOT_TOLD = "no fit: exposed time within noise"
NO_MODEL = "no fit: residuals above half of the exposed times"
NO_OPTIMUM = "no optimum in this range"
MOST_RESIDUAL = 0.5  # of what is exposed, both root mean square
GB_PER_S = 1e9
TIMED, EXPOSED = "timed after backward", "with less without"


def by_variant(cells: Iterable[Record]) -> list[Record]:
    """One record a cell and variant, its samples and values without the variant's key before their names."""
    return [_row(record, variant) for record in cells for variant in _variants(record)]


def _variants(record: Record) -> list[v.Variant]:
    return v.from_level(str(record.factors["variants"]))


def _row(record: Record, variant: v.Variant) -> Record:
    bucket = NO_BUCKETS if variant.bucket_mb is None else _whole(variant.bucket_mb)
    row = replace(
        record,
        factors={**record.factors, "implementation": variant.implementation, "bucket_mb": bucket},
        samples=_own(record.samples, variant),
        warmup=_own(record.warmup, variant),
        timers=_own(record.timers, variant),
        series=_own(record.series, variant),
        values={**record.values, **_own(record.values, variant)},
    )
    if record.ok:
        row.values |= _communication(row)
    return row


def _whole(size: float) -> float | int:
    return int(size) if size == int(size) else size


def _own(named: dict[str, Any], variant: v.Variant) -> dict[str, Any]:
    begin = f"{variant.key}_"
    return {name.removeprefix(begin): one for name, one in named.items() if name.startswith(begin)}


def turns(record: Record, sample: str) -> list[list[float]]:
    """The samples of each turn, of all rounds."""
    return [turn for samples in record.samples[sample] for turn in split(list(samples), int(record.factors["turns"]))]


def _communication(row: Record) -> dict[str, Any]:
    """Exposed communication: a turn's median with communication less that without, over turns."""
    differences = _differences(turns(row, "step_ms"), turns(row, "off_ms"))
    found: dict[str, Any] = {"exposed_ms": median(differences), "turns": len(differences)}
    interval = _interval(differences)
    low, high = interval or (None, None)
    found["exposed_low_ms"] = TOO_FEW_TURNS if low is None else low
    found["exposed_high_ms"] = TOO_FEW_TURNS if high is None else high
    found["exposed_interval"] = (
        TOO_FEW_TURNS if low is None else f"{format_figure(low)} to {format_figure(high)} ({_coverage(differences)})"
    )
    found["exposed_spread"] = TOO_FEW_TURNS if low is None or high is None else (high - low) / 2
    timed = row.factors["implementation"] in v.AFTER_BACKWARD
    spent = _middle(row, "communication_ms") if timed else found["exposed_ms"]
    step = _middle(row, "marked_step_ms" if timed else "step_ms")  # of the same steps, so that it is a share
    found |= {"spent_ms": spent, "spent_how": TIMED if timed else EXPOSED, "spent_percent": 100 * spent / step}
    spread = _iqr(row, "communication_ms") if timed else found["exposed_spread"]
    found |= {"spent_of_ms": step, "spent_spread": spread}
    return found | {"spent_percent_spread": spread if isinstance(spread, str) else 100 * spread / step}


def _differences(on: Sequence[Sequence[float]], off: Sequence[Sequence[float]]) -> list[float]:
    """Of each turn the median with communication less that without."""
    return [median(one) - median(other) for one, other in zip(on, off, strict=True)]


def _interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Distribution-free interval of the median of turns that may be negative: it moves along with them."""
    shift = min(differences)
    found = median_interval([one - shift for one in differences])
    return None if found is None else (found[0] + shift, found[1] + shift)


def _coverage(differences: Sequence[float]) -> str:
    found = median_interval([one - min(differences) for one in differences])
    return "" if found is None else f"{100 * found[2]:.1f} %"


def _iqr(row: Record, sample: str) -> float | str:
    found = t.summary(row, sample)
    return t.ONE_SAMPLE if found.n == 1 else found.iqr


def _middle(row: Record, sample: str) -> float:
    return median(one for samples in row.samples[sample] for one in samples)


def _of_cells(rows: Iterable[Record]) -> list[list[Record]]:
    """The rows by cell, in their order."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(canonical([row.factors[name] for name in OF_CELL]), []).append(row)
    return list(found.values())


def of_implementations(rows: Iterable[Record], *implementations: str) -> list[Record]:
    """The rows of these implementations."""
    return [row for row in rows if row.factors["implementation"] in implementations]


def traced(rows: Iterable[Record]) -> list[Record]:
    """The rows of traced variants, of cells that trace; without a trace one row a cell that is not ok."""
    found = []
    for row in rows:
        of = v.traced(_variants(row))
        bucket = row.factors["bucket_mb"]
        own = v.Variant(row.factors["implementation"], None if bucket == NO_BUCKETS else bucket)
        if row.factors["traced"] and own in of:
            found.append(row)
    return found


def spans(rows: Iterable[Record]) -> list[Record]:
    """One record a span of the traced steps of rank 0."""
    found = []
    for row in traced(rows):
        series = row.series
        if not row.ok or "lane" not in series:
            found.append(_span(row, "all", 0, {}))
            continue
        parallel = zip(series["lane"], series["start_ns"], series["ns"], strict=True)
        for number, (lane, start, length) in enumerate(parallel):
            times = {"start_ms": start / 1e6, "duration_ms": length / 1e6, "step_ms": row.values["traced_step_ms"]}
            found.append(_span(row, lane, number, times))
    return found


def _span(row: Record, lane: str, number: int, values: dict[str, Any]) -> Record:
    return replace(row, factors={**row.factors, "lane": lane, "span": number}, samples={}, series={}, values=values)


def overhead(rows: Iterable[Record]) -> list[Record]:
    """The rows of bucket sizes and of single gradients (a bucket each), with the model of their cell beside them."""
    chosen = [row for row in rows if row.factors["implementation"] in (v.OVERLAP, v.BUCKETED)]
    return [one for group in _of_cells(chosen) for one in _with_model(group)]


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
    return [replace(row, values={**row.values, **_named(row, total, fit)}) for row in group]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in values) / len(values))


def _may_be_none(row: Record) -> bool:
    """Whether the interval of exposed communication holds 0."""
    low, high = row.values["exposed_low_ms"], row.values["exposed_high_ms"]
    return isinstance(low, float) and isinstance(high, float) and low <= 0 <= high


def _without_fit(group: list[Record], why: str) -> list[Record]:
    names = ("model_ms", "residual_ms", "bandwidth", "call_us", "best_bucket_mb")
    return [
        replace(row, values={**row.values, "bucket_count": row.values["all_reduces"], **dict.fromkeys(names, why)})
        if row.ok
        else row
        for row in group
    ]


def _named(row: Record, total: float, fit: OverheadFit) -> dict[str, Any]:
    count = int(row.values["all_reduces"])
    model_ms = 1e3 * overhead_s(total, count, fit.bytes_per_s, fit.call_s)
    rates = (fit.bytes_per_s, fit.call_s)
    return {
        "bucket_count": count,
        "model_ms": model_ms,
        "residual_ms": row.values["exposed_ms"] - model_ms,
        "bandwidth": fit.bytes_per_s / GB_PER_S if fit.bytes_per_s < float("inf") else "no such term",
        "call_us": fit.call_s * 1e6 if fit.call_s > 0 else "no such term",
        "best_bucket_mb": best_bucket_bytes(total, *rates) / BYTES_PER_MB if fit.has_optimum else NO_OPTIMUM,
    }
