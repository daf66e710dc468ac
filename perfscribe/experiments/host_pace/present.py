"""The same forward pass as three experiments timed it: the device repeats itself, the host that launches may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import tables as t
from perfscribe.experiments.nsys_profile.busy import DEVICE_BOUND_PERCENT, NO_LAUNCHES, place
from perfscribe.experiments.nsys_profile.columns import busy_ms
from perfscribe.findings import CannotTell, Finding, find, from_to
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("cs336.host_pace",)
FIGURES = ()
READS = ("end_to_end", "nsys_profile", "torch_compile")

BASE = "forward_ms"
# The experiments beside benchmarking_script, and the sample in which each timed the pass without profiler or compiler.
OTHERS = {"nsys_profile": "forward_ms", "torch_compile": "eager_forward_ms"}
TITLES = {"nsys_profile": "nsys_profile, not traced", "torch_compile": "torch_compile, eager"}
NOT_PLANNED = "not planned"
# Times repeat themselves, and launch-bound passes differ no more than device-bound ones, where they do so up to this.
MARGIN = 0.05
NOTE = (
    "Forward with its graph, to the loss, by the host clock, the device synchronised: the same work in each "
    "experiment, in processes of their own, perhaps hours apart. Ratio: over benchmarking_script's time. Device busy: "
    "the kernels' time in nsys_profile's traced pass of median length, as a share of the longest of the times of its "
    "row, none of which was traced. A CPU launches nothing."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """One row a cell of end_to_end that another experiment timed as well."""
    others = {name: {place(cell.factors): cell for cell in _timed(records[name], OTHERS[name])} for name in OTHERS}
    cells = [cell for cell in records["end_to_end"] if any(place(cell.factors) in known for known in others.values())]
    rows = [_row(cell, {name: known.get(place(cell.factors)) for name, known in others.items()}) for cell in cells]
    return [t.make(TABLES[0], "The same forward pass in three experiments", rows, _columns(), [NOTE])]


def _timed(cells: Iterable[Record], sample: str) -> list[Record]:
    """The cells of whole models that hold the sample; of a setting in several implementations the first."""
    found: dict[tuple[Any, ...], Record] = {}
    for cell in cells:
        if "size" in cell.factors and sample in cell.samples:
            found.setdefault(place(cell.factors), cell)
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
    return [*columns, t.derived("busy_percent", "Device busy (% of the longest)", _busy_percent)]


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
    """Of the longest time, so that a pass counts as device-bound only if no experiment waited for launches."""
    traced = row.values["nsys_profile"]
    if traced is None:
        return NOT_PLANNED
    if row.factors["device"] == "cpu":  # a profiler slows operators, but no kernels
        return NO_LAUNCHES
    others = [_median(other, OTHERS[name]) for name, other in row.values.items() if other is not None]
    return 100 * busy_ms(traced) / max(_median(row, BASE), *others)


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether the host was as fast in one experiment as in the other."""
    return [find("cs336.host_pace", TABLES, lambda: _steadiness(tables[TABLES[0]].ok))]


def _steadiness(rows: pd.DataFrame) -> str:
    """Ratios where the device has work for most of the pass, and where it waits for the host; what follows of both."""
    on_gpu = rows[rows["device"] == "cuda"] if len(rows) else rows
    if on_gpu.empty:
        raise CannotTell("no pass was timed by two experiments on a CUDA device, where a host launches")
    busy = pd.to_numeric(on_gpu["busy_percent"], errors="coerce")
    device_bound, launch_bound = on_gpu[busy >= DEVICE_BOUND_PERCENT], on_gpu[busy < DEVICE_BOUND_PERCENT]
    enough = f"the device busy for {DEVICE_BOUND_PERCENT:g} % or more of the longest of its times"
    parts = [
        f"where it is {name}: {ratios}"
        for name, group in (
            (f"device-bound ({enough})", device_bound),
            ("launch-bound (busy for less)", launch_bound),
        )
        if (ratios := _ratios(group))
    ]
    if not parts:
        raise CannotTell("no pass that two experiments timed on a CUDA device was traced")
    return (
        f"The same forward pass takes, as a multiple of benchmarking_script's time, {'; '.join(parts)}. "
        f"{_conclusion(_apart(device_bound), _apart(launch_bound))}"
    )


def _conclusion(device_bound: float | None, launch_bound: float | None) -> str:
    """What follows of how many times the passes of either group differ at most."""
    steady = device_bound is not None and device_bound <= 1 + MARGIN
    if launch_bound is None:
        if steady:
            return "Launches bind none of these passes, so their times compare from experiment to experiment."
        return (
            f"Launches bind none of these passes, but they differ between experiments by up to {device_bound:.3g} "
            "times: the device does not repeat itself, and their times do not compare from experiment to experiment."
        )
    told = f"Launch-bound passes differ between experiments by up to {launch_bound:.3g} times"
    if device_bound is None:
        return f"{told}; no device-bound one stands beside them."
    told += f", device-bound ones by up to {device_bound:.3g}"
    if not steady:
        return f"{told}: the device's own times stray too, so that nothing can be told of the host."
    if launch_bound <= 1 + MARGIN:
        return f"{told}: the host launched at one pace."
    if launch_bound <= device_bound * (1 + MARGIN):
        return f"{told}, about as much, so that nothing can be told of the host."
    return (
        f"{told}: the device repeats itself and the host launched at another pace. Times that launches bind, and "
        "speed-ups over them, compare within one experiment alone."
    )


def _of_all(rows: pd.DataFrame, name: str) -> pd.Series:
    return pd.to_numeric(rows[f"{name}_ratio"], errors="coerce").dropna()


def _apart(rows: pd.DataFrame) -> float | None:
    """How many times the furthest of these ratios is from 1; None where there are none."""
    ratios = [ratio for name in TITLES for ratio in _of_all(rows, name)]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=None)


def _ratios(rows: pd.DataFrame) -> str:
    told = []
    for name, title in TITLES.items():
        ratios = _of_all(rows, name)
        if len(ratios):
            told.append(
                f"{from_to(ratios, '{:.3g}'.format)} in {title} (median {ratios.median():.3g} of {len(ratios)})"
            )
    return ", ".join(told)
