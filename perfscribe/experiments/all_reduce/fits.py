"""Latency and bandwidth of each way to communicate, by least squares of relative errors over its sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.analytic.traffic import GB, bus_factor
from perfscribe.instruments.statistics import LatencyBandwidthFit, fit_latency_bandwidth
from perfscribe.records.records import Record
from perfscribe.show import tables as t

WAY = ("operation", "backend", "device", "transport", "world_size", "megabyte")
LEAST_SIZES = 3  # of a fit
DESCRIBES = 0.2  # relative: with larger residuals one latency and one bandwidth do not describe all sizes
NOT_DESCRIBED = f"none: residuals above {100 * DESCRIBES:.0f} %"
NOT_REACHED, NO_GROWTH = "none: the largest is below it", "none: no growth with size"
NEVER_STARTED = ("skipped", "unsupported", "not_run")


def key_of(record: Record) -> tuple[Any, ...]:
    """What the sizes of one line have in common."""
    return tuple(record.factors[name] for name in WAY)


def once(records: Iterable[Record]) -> list[Record]:
    """The records without cells that the preset leaves out while it has the same message, timed within other limits.

    Cells that were not to be measured, or cannot be here, come last, those of one reason beside each other.
    """
    every = list(records)
    planned = {(*key_of(record), record.factors["size_mb"]) for record in every if record.status != "skipped"}
    kept = [r for r in every if r.status != "skipped" or (*key_of(r), r.factors["size_mb"]) not in planned]
    return _lacking_last(kept)


def _lacking_last(records: Iterable[Record]) -> list[Record]:
    """In their order, but for those without figures from the start, which follow by status and reason."""
    return sorted(records, key=lambda r: (r.status, r.reason) if r.status in NEVER_STARTED else ("", ""))


def swept(chosen: Sequence[Record]) -> list[Record]:
    """The sweep, and the homework's cells of the same ways, by size."""
    ways = {key_of(record) for record in chosen if record.factors["grid"] == "sweep"}
    found = t.grouped((record for record in chosen if key_of(record) in ways), key_of)
    return _lacking_last(one for group in found.values() for one in sorted(group, key=lambda r: r.factors["size_mb"]))


def _fit(group: Iterable[Record]) -> LatencyBandwidthFit | None:
    ok = [record for record in group if record.ok]
    if not ok:
        return None
    times_s = [t.summary(record, "time_ms").median * 1e-3 for record in ok]
    return fit_latency_bandwidth([float(record.values["message_bytes"]) for record in ok], times_s)


def rows(records: Iterable[Record]) -> list[Record]:
    """A record a way: its fit as values; where there is none, the status that keeps it from one."""
    return _lacking_last(_row(group) for group in t.grouped(records, key_of).values())


def _row(group: Sequence[Record]) -> Record:
    fit = _fit(group)
    ok = [record for record in group if record.ok]
    factors = {name: group[0].factors[name] for name in WAY}
    if fit is None:
        lost = next((record for record in group if not record.ok), None)
        status, reason = "not_run", f"fewer than {LEAST_SIZES} sizes were measured"
        if lost is not None:
            status, reason = lost.status, lost.reason
        return replace(group[0], factors=factors, status=status, reason=reason, samples={}, values={}, series={})
    values = {name: ok[0].values[name] for name in ("connections",) if name in ok[0].values}
    values |= _values(fit, factors) | {"half_reached_bytes": _half_reached(ok)}
    flags = sorted({flag for record in ok for flag in record.flags})
    return replace(ok[0], factors=factors, samples={}, series={}, flags=flags, values=values)


def _half_reached(measured: Iterable[Record]) -> float | str:
    """The least measured message from which on all reach half of the best bandwidth of any; a text where none does."""
    sent = {float(record.values["message_bytes"]): t.summary(record, "time_ms").median for record in measured}
    rates = {size: size / time_ms for size, time_ms in sent.items()}
    below = [size for size, rate in rates.items() if rate < max(rates.values()) / 2]
    return min((size for size in rates if size > max(below, default=0.0)), default=NOT_REACHED)


def _values(fit: LatencyBandwidthFit, factors: dict[str, Any]) -> dict[str, Any]:
    worst = max(fit.residuals, key=abs)
    values: dict[str, Any] = {
        "latency_us": 1e6 * fit.alpha_s,
        "points": fit.points,
        "worst_residual_percent": 100 * worst,
        **dict.fromkeys(("bandwidth_gb_per_s", "bus_gb_per_s", "half_bandwidth_bytes"), NO_GROWTH),
    }
    if fit.beta_s_per_byte > 0:
        bandwidth = 1 / fit.beta_s_per_byte / GB
        values["bandwidth_gb_per_s"] = bandwidth
        values["bus_gb_per_s"] = bandwidth * bus_factor(factors["operation"], factors["world_size"])
        values["half_bandwidth_bytes"] = fit.half_bandwidth_bytes if abs(worst) <= DESCRIBES else NOT_DESCRIBED
    return values
