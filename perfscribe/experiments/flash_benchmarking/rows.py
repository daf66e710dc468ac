"""Rows of flash_benchmarking: cells of one problem joined into one row, rates, and the leaderboard's entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfscribe.analytic.flops import attention_backward_flop, attention_forward_flop
from perfscribe.attention import backends
from perfscribe.instruments.precision import DTYPES
from perfscribe.instruments.statistics import ROUNDS_FOR_INTERVAL, Rounds, ratio
from perfscribe.records.records import STATUSES, Record
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, product_flop_per_s
from perfscribe.show.tables import Column

EXPERIMENT = "flash_benchmarking"
PROBLEM = ("device", "seq_len", "head_dim", "dtype", "batch", "heads", "causal", "samples")
# Timed on a few problems alone; they have no columns in tables of all problems.
ELSEWHERE = ("compiled", "flex")
OURS = "ours"
NOT_PLANNED = "not planned"
FASTER, SLOWER, CANNOT_TELL = "faster", "slower", "cannot tell"
# Of a published entry of the leaderboard, what stands in its values.
ENTRY_METRIC, ENTRY_TIMER = "forward_backward_ms", "do_bench, by its source"


def of_workload(cells: Iterable[Record], workload: str) -> list[Record]:
    """The cells of one kind: grid, leaderboard or matmul."""
    return [cell for cell in cells if cell.factors["workload"] == workload]


def shown_implementations(cells: Sequence[Record]) -> list[str]:
    """Those that gave figures anywhere, in the order of the table of implementations; all that occur if none did."""
    planned = {str(cell.factors["implementation"]) for cell in cells} - set(ELSEWHERE)
    measured = {str(cell.factors["implementation"]) for cell in cells if cell.ok} - set(ELSEWHERE)
    return [name for name in backends.IMPLEMENTATIONS if name in (measured or planned)]


def joined(cells: Sequence[Record]) -> list[Record]:
    """One record a problem; its values hold the cells by implementation, under "ours" this project's for the device.

    A row is ok where any of its cells is; what the others ended with is then told by flags, as are the cells' own
    flags, each by the name of its implementation.
    """
    problems: dict[tuple[Any, ...], dict[str, Record]] = {}
    for cell in cells:
        key = tuple(cell.factors[name] for name in PROBLEM)
        problems.setdefault(key, {})[str(cell.factors["implementation"])] = cell
    places = list(dict.fromkeys(key[:3] for key in problems))
    ordered = sorted(problems, key=lambda key: (places.index(key[:3]), DTYPES.index(key[3])))
    return [_row(dict(zip(PROBLEM, key, strict=True)), problems[key]) for key in ordered]


def _row(problem: dict[str, Any], by: dict[str, Record]) -> Record:
    own = backends.ours(problem["device"])
    cells = list(by.values())
    ok = [cell for cell in cells if cell.ok]
    best = ok[0] if ok else min(cells, key=lambda cell: STATUSES.index(cell.status))
    told = [
        f"{backends.named(name).title}: {cell.status}, {t.reason(cell)}"
        for name, cell in by.items()
        if ok and cell.status in ("oom", "timeout", "failed")
    ]
    told += [
        f"{backends.named(name).title}: {'; '.join(cell.flags)}" for name, cell in by.items() if cell.ok and cell.flags
    ]
    return Record(
        experiment=best.experiment,
        factors={**problem, OURS: backends.named(own).title.removesuffix(f" ({OURS})")},
        status=best.status,
        reason=best.reason,
        origin=best.origin,
        # none where nothing was measured: the row then shows its status throughout
        values={**by, **({OURS: by[own]} if own in by else {})} if any(cell.samples for cell in cells) else {},
        environments=sorted({name for cell in cells for name in cell.environments}),
        flags=told,
        error=best.error,
    )


def cell_of(row: Record, implementation: str) -> Record | None:
    """The cell of an implementation in a joined row."""
    found: Record | None = row.values.get(implementation)
    return found


def of_cell(implementation: str, column: Column) -> Column:
    """A column of single cells made one of joined rows: of one implementation, with its status where it has none."""
    name = f"{implementation}_{column.name}"

    def asked(get: Callable[[Record], Any] | None) -> Callable[[Record], Any] | None:
        return None if get is None else lambda row: _figure(row, implementation, get)

    return replace(
        column,
        name=name,
        get=lambda row: _figure(row, implementation, column.get),
        spread=f"{name}_iqr" if column.spread else "",
        spread_get=asked(column.spread_get),
        rounds_get=asked(column.rounds_get),
    )


def _figure(row: Record, implementation: str, get: Callable[[Record], Any]) -> Any:
    cell = cell_of(row, implementation)
    if cell is None:
        return NOT_PLANNED
    try:
        return get(cell)
    except KeyError:  # no such sample: the cell ended before it
        return cell.status if not cell.ok else t.NOT_RECORDED


def verdict(base: str, other: str, sample: str) -> Callable[[Record], str]:
    """Whether `other` is faster or slower than `base` in a joined row.

    Where one of them was not timed, what it ended with: nothing was compared.
    """

    def get(row: Record) -> str:
        cells = [cell_of(row, name) for name in (base, other)]
        rounds = [cell.samples.get(sample, []) if cell is not None else [] for cell in cells]
        if all(rounds):
            return judged(rounds[0], rounds[1])
        absent = cells[0] if not rounds[0] else cells[1]
        return NOT_PLANNED if absent is None else absent.status if not absent.ok else t.NOT_RECORDED

    return get


def judged(base: Rounds, other: Rounds) -> str:
    """The verdict on `other` against `base` from their rounds of samples."""
    if len(base) == len(other) >= ROUNDS_FOR_INTERVAL:
        return ratio(base, other).verdict
    first, second = np.concatenate(list(map(np.asarray, base))), np.concatenate(list(map(np.asarray, other)))
    if second.max() < first.min():
        return FASTER
    return SLOWER if second.min() > first.max() else CANNOT_TELL


def flop(factors: Mapping[str, Any], one: str) -> float:
    """FLOP of a pass of causal attention: forward, backward or both."""
    size = (factors["batch"], factors["heads"], factors["seq_len"], factors["head_dim"])
    forward = attention_forward_flop(*size, causal=bool(factors["causal"]))
    backward = attention_backward_flop(*size, causal=bool(factors["causal"]))
    return float({"forward": forward, "backward": backward, "both": forward + backward}[one])


def tflop_per_s(record: Record, one: str) -> float:
    """Rate of a pass by its median device time, TFLOP/s."""
    return flop(record.factors, one) / t.summary(record, f"{one}_ms").median * 1e3 / TERA


def measured_peaks(products: Sequence[Record]) -> dict[tuple[str, str], float]:
    """The highest rate of a measured product by device and dtype, TFLOP/s."""
    found: dict[tuple[str, str], float] = {}
    for record in products:
        if record.ok:
            key = (str(record.factors["device"]), str(record.factors["dtype"]))
            found[key] = max(found.get(key, 0.0), product_flop_per_s(record) / TERA)
    return found


def leaderboard(cells: Sequence[Record]) -> list[Record]:
    """Our cells of the leaderboard's problem, then the published entries by time, as records of origin `published`."""
    found = [
        replace(
            cell, factors={**cell.factors, "entry": f"here: {backends.named(cell.factors['implementation']).title}"}
        )
        for cell in cells
    ]
    known = [one for one in references.load(EXPERIMENT) if one.metric == ENTRY_METRIC and "entry" in one.factors]
    for one in sorted(known, key=lambda reference: reference.value or 0.0):
        values = {ENTRY_METRIC: one.value, "hardware": one.hardware, "remark": one.remark, "timer": ENTRY_TIMER}
        entry = str(one.factors["entry"]).replace("_", " ").title()
        factors = {**one.factors, "entry": entry, "device": "cuda"}
        found.append(Record(EXPERIMENT, factors, "ok", "", "published", values=values))
    return found
