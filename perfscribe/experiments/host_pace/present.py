"""The same forward pass as three experiments timed it: the device repeats itself, the host that launches may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import tables as t
from perfscribe.experiments.nsys_profile.columns import busy_ms
from perfscribe.findings import CannotTell, Finding, find, from_to
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.host_pace",)
FIGURES = ()
READS = ("end_to_end", "nsys_profile", "torch_compile")

SAME = ("size", "seq_len", "batch", "dtype", "device")
BASE = "forward_ms"
# The experiments beside benchmarking_script, and the sample in which each timed the pass without profiler or compiler.
OTHERS = {"nsys_profile": "forward_ms", "torch_compile": "eager_forward_ms"}
TITLES = {"nsys_profile": "nsys_profile, not traced", "torch_compile": "torch_compile, eager"}
NOT_PLANNED = "not planned"
# From this share of device work on, of a pass as nsys_profile timed it, launches hide behind it.
BUSY_PERCENT = 80.0
NOTE = (
    "Forward with its graph, to the loss, by the host clock, the device synchronised: the same work in each "
    "experiment, in processes of their own, perhaps hours apart. Ratio: over benchmarking_script's time. Device busy: "
    "the kernels' time in the traced pass of median length, as a share of the pass that was not traced."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """One row a cell of end_to_end that another experiment timed as well."""
    others = {name: {_place(cell): cell for cell in _timed(records[name], OTHERS[name])} for name in OTHERS}
    cells = [cell for cell in records["end_to_end"] if any(_place(cell) in known for known in others.values())]
    rows = [_row(cell, {name: known.get(_place(cell)) for name, known in others.items()}) for cell in cells]
    return [t.make(TABLES[0], "The same forward pass in three experiments", rows, _columns(), [NOTE])]


def _place(cell: Record) -> tuple[Any, ...]:
    return tuple(cell.factors.get(name) for name in SAME)


def _timed(cells: Iterable[Record], sample: str) -> list[Record]:
    """The cells of whole models that hold the sample; of a setting in several implementations the first."""
    found: dict[tuple[Any, ...], Record] = {}
    for cell in cells:
        if "size" in cell.factors and sample in cell.samples:
            found.setdefault(_place(cell), cell)
    return list(found.values())


def _row(cell: Record, others: Mapping[str, Record | None]) -> Record:
    environments = {name for one in (cell, *others.values()) if one is not None for name in one.environments}
    return replace(cell, values=dict(others), environments=sorted(environments))


def _columns() -> list[t.Column]:
    titles = {"size": "Size", "seq_len": "Context", "batch": "Batch", "dtype": "Dtype", "device": "Device"}
    columns = [*(t.factor(name, title) for name, title in titles.items())]
    columns += [t.median(BASE, "benchmarking_script (ms)"), t.iqr(BASE, "IQR (ms)")]
    for name, sample in OTHERS.items():
        columns += [
            t.derived(f"{name}_ms", f"{TITLES[name]} (ms)", _of(name, sample, _median), spread=f"{name}_ms_iqr"),
            t.derived(f"{name}_ms_iqr", "IQR (ms)", _of(name, sample, lambda one, at: t.summary(one, at).iqr)),
            t.derived(f"{name}_ratio", "Ratio", _ratio(name, sample)),
        ]
    return [*columns, t.derived("busy_percent", "Device busy (% of nsys_profile's)", _busy_percent)]


def _median(record: Record, sample: str) -> float:
    return t.summary(record, sample).median


def _of(name: str, sample: str, get: Callable[[Record, str], float]) -> Callable[[Record], Any]:
    """A figure of the other experiment's cell for the same pass."""

    def figure(row: Record) -> Any:
        other = row.values[name]
        return NOT_PLANNED if other is None else get(other, sample)

    return figure


def _ratio(name: str, sample: str) -> Callable[[Record], Any]:
    def ratio(row: Record) -> Any:
        other = row.values[name]
        return NOT_PLANNED if other is None else _median(other, sample) / _median(row, BASE)

    return ratio


def _busy_percent(row: Record) -> Any:
    traced = row.values["nsys_profile"]
    return NOT_PLANNED if traced is None else 100 * busy_ms(traced) / _median(traced, OTHERS["nsys_profile"])


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether the host was as fast in one experiment as in the other."""
    return [find("cs336.host_pace", TABLES, lambda: _steadiness(tables[TABLES[0]].ok))]


def _steadiness(rows: pd.DataFrame) -> str:
    """Ratios where the device has work for most of the pass, and where it waits for the host."""
    on_gpu = rows[rows["device"] == "cuda"] if len(rows) else rows
    if on_gpu.empty:
        raise CannotTell("no pass was timed by two experiments on a CUDA device, where a host launches")
    busy = pd.to_numeric(on_gpu["busy_percent"], errors="coerce")
    parts = [
        text
        for where, kept in (
            (f"where the device is busy for {BUSY_PERCENT:g} % of nsys_profile's time or more", busy >= BUSY_PERCENT),
            ("where it waits more than that", busy < BUSY_PERCENT),
        )
        for text in [_ratios(on_gpu[kept], where)]
        if text
    ]
    return (
        f"The same forward pass takes, as a multiple of benchmarking_script's time, {'; '.join(parts)}. Where "
        "the second leave 1 and the first do not, the host launched at another pace: times that launches bound, and "
        "speed-ups over them, then compare within one experiment alone."
    )


def _ratios(rows: pd.DataFrame, where: str) -> str:
    told = []
    for name, title in TITLES.items():
        ratios = pd.to_numeric(rows[f"{name}_ratio"], errors="coerce").dropna()
        if len(ratios):
            told.append(
                f"{from_to(ratios, '{:.3g}'.format)} in {title} (median {ratios.median():.3g} of {len(ratios)})"
            )
    return f"{where}: {', '.join(told)}" if told else ""
