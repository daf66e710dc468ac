"""Rows of kernels, bins and ranges, one record each, made of cells' records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfscribe import tables as t
from perfscribe.experiments.nsys_profile import shares
from perfscribe.experiments.nsys_profile.columns import factors
from perfscribe.experiments.nsys_profile.reading import NS_PER_MS, PARTS, PHASES, REST
from perfscribe.experiments.nsys_profile.timeline import BINS
from perfscribe.profiling.families import family
from perfscribe.records import Record

# Of a cell that does not keep every kernel, so many of each of these ranges stand in the CSV.
KERNELS_SHOWN = 3
RANGES_SHOWN = ("forward", "backward", "optimizer")
ALL = "all"


def row(record: Record, levels: dict[str, Any], values: dict[str, Any]) -> Record:
    """The record of one row of a cell: further factors, figures of its own."""
    return replace(record, factors={**record.factors, **levels}, samples={}, series={}, values=values)


def by_pass(cells: Sequence[Record], passes: Sequence[str]) -> list[Record]:
    """One record a cell and pass; a cell without figures stays one row."""
    result = []
    for record in cells:
        if record.ok:
            result += [replace(record, factors={**record.factors, "pass": name}) for name in passes]
        else:
            result.append(replace(record, factors={**record.factors, "pass": ALL}, samples={}, values={}, series={}))
    return result


# --- NVTX range x kernel --------------------------------------------------------------------------------------------


def kernel_rows(cells: Sequence[Record]) -> list[Record]:
    """One record a cell, range and kernel."""
    result = []
    for record in cells:
        if not record.ok:
            result.append(row(record, {"range": ALL, "kernel": ALL}, {}))
            continue
        for label in (*PHASES, *PARTS) if record.factors["detailed"] else RANGES_SHOWN:
            result += [row(record, levels, values) for levels, values in _kernels_of(record, label)]
    return result


def _kernels_of(record: Record, label: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    found = shares.kernels(record, label)
    total, passes = sum(kernel.total_ns for kernel in found), shares.traced(record)
    shown = found if record.factors["detailed"] else found[:KERNELS_SHOWN]
    for place, kernel in enumerate(shown):
        name = f"{kernel.kernels} {REST}" if kernel.name == REST else kernel.name
        values = {
            "family": kernel.family,
            "launches": shares.a_pass(kernel.launches, passes),
            "percent": round(100 * kernel.total_ns / total, 3),
            "total_us": round(kernel.total_ns / passes / 1e3, 3),
            "mean_us": round(kernel.total_ns / kernel.launches / 1e3, 3),
        }
        for figure in ("median", "min", "max"):
            kept = record.series.get(f"{label}_{figure}_ns")
            values[f"{figure}_us"] = kept[place] / 1e3 if kept else "not kept"
        yield {"range": label, "kernel": name}, values


def kernel_columns() -> list[t.Column]:
    """Columns of kernel_rows."""
    return [
        *factors(t.factor("range", "Range"), t.factor("kernel", "Kernel")),
        t.value("family", "Family", exact=True),
        t.value("launches", "Launches a pass", exact=True),
        t.value("percent", "Share of the range (%)"),
        t.value("total_us", "Total a pass (µs)"),
        t.value("mean_us", "Mean (µs)"),
        t.value("median_us", "Median (µs)"),
        t.value("min_us", "Shortest (µs)"),
        t.value("max_us", "Longest (µs)"),
    ]


# --- the timeline of a step -----------------------------------------------------------------------------------------


def _detailed(cells: Sequence[Record]) -> list[Record]:
    return [record for record in cells if record.factors["detailed"]]


def phase_rows(cells: Sequence[Record]) -> list[Record]:
    """One record a range of the step that a detailed cell keeps, and of the layer that it shows exactly."""
    result = []
    for record in _detailed(cells):
        if not record.ok or "timeline_phase" not in record.series:
            result.append(row(record, {"lane": ALL, "name": ALL}, {}))
            continue
        spans = [("phase", *span) for span in _spans(record, "timeline_phase", "timeline")]
        spans += [("range", *span) for span in _spans(record, "layer_range", "layer_range")]
        names = record.series["kernel_names"]
        spans += [("kernel", names[place], *span) for place, *span in _spans(record, "layer_kernel", "layer")]
        for lane, name, start, duration in spans:
            times = {"start_ms": start / NS_PER_MS, "duration_ms": duration / NS_PER_MS}
            own = family(name) if lane == "kernel" else "none"
            result.append(row(record, {"lane": lane, "name": name}, {"family": own, **times}))
    return result


def _spans(record: Record, names: str, times: str) -> list[tuple[Any, int, int]]:
    parallel = (record.series.get(name, []) for name in (names, f"{times}_start_ns", f"{times}_ns"))
    return list(zip(*parallel, strict=True))


def span_columns() -> list[t.Column]:
    """Columns of phase_rows."""
    return [
        *factors(t.factor("lane", "Lane"), t.factor("name", "Name")),
        t.value("family", "Family", exact=True),
        t.value("start_ms", "Start (ms)"),
        t.value("duration_ms", "Duration (ms)"),
    ]


def bin_rows(cells: Sequence[Record], families: Sequence[str]) -> list[Record]:
    """One record a bin of the step that a detailed cell keeps, with the share of its time that each family takes."""
    result = []
    for record in _detailed(cells):
        if not record.ok or "timeline_bin" not in record.series:
            result.append(row(record, {"bin": ALL}, {}))
            continue
        names, width_ns = record.series["kernel_names"], record.series["timeline_ns"][0] / BINS
        busy: dict[int, Counter[str]] = {number: Counter() for number in range(BINS)}
        series = (record.series[f"timeline_{name}"] for name in ("bin", "bin_kernel", "bin_ns"))
        for number, place, ns in zip(*series, strict=True):
            busy[number][family(names[place])] += ns
        for number, times in busy.items():
            values = {f"{name}_percent": round(100 * times[name] / width_ns, 2) for name in families}
            result.append(row(record, {"bin": number}, {"start_ms": round(number * width_ns / NS_PER_MS, 6), **values}))
    return result


def bin_columns(families: Sequence[str]) -> list[t.Column]:
    """Columns of bin_rows."""
    return [
        *factors(t.factor("bin", "Bin")),
        t.value("start_ms", "Start (ms)"),
        *(t.value(f"{name}_percent", f"{name} (%)") for name in families),
    ]
