"""Cells of one problem joined into one row, a figure an implementation, and verdicts on one against another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfscribe import tables as t
from perfscribe.attention import backends
from perfscribe.precision import DTYPES
from perfscribe.records import STATUSES, Record
from perfscribe.statistics import ROUNDS_FOR_INTERVAL, Rounds, ratio
from perfscribe.tables import Column

PROBLEM = ("device", "seq_len", "head_dim", "dtype", "batch", "heads", "causal", "samples")
# Timed on a few problems alone; they have no columns in tables of all problems.
ELSEWHERE = ("compiled", "flex")
OURS = "ours"
NOT_PLANNED = "not planned"
FASTER, SLOWER, CANNOT_TELL = "faster", "slower", "cannot tell"


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
    flags, each by the name of its implementation. What is unsupported stands in its place, for a reason that refusals()
    gives once.
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


def refusals(cells: Iterable[Record]) -> list[str]:
    """Why implementations are unsupported where others ran on the same device: one note, none without such cells."""
    cells = list(cells)
    devices = {cell.factors["device"] for cell in cells if cell.ok}
    why: dict[str, list[str]] = {}
    for cell in cells:
        if cell.status == "unsupported" and cell.factors["device"] in devices:
            name = f"{backends.named(str(cell.factors['implementation'])).title} in {cell.factors['dtype']}"
            why.setdefault(" ".join(t.reason(cell).split()).rstrip("."), []).append(name)
    told = [f"{', '.join(dict.fromkeys(names))} ({reason})" for reason, names in why.items()]
    return [f"Unsupported: {'; '.join(told)}."] if told else []


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


def median_ms(row: Record, implementation: str, sample: str) -> float | None:
    """The median of an implementation's sample in a joined row, None where there is none."""
    cell = cell_of(row, implementation)
    return t.summary(cell, sample).median if cell is not None and cell.samples.get(sample) else None


def speedup(base: str, other: str, sample: str) -> Callable[[Record], Any]:
    """How many times as long the base takes; where one of them has no figure, which."""

    def get(row: Record) -> Any:
        slow, fast = median_ms(row, base, sample), median_ms(row, other, sample)
        if slow is None or fast is None:
            return f"no figure of {base if slow is None else other}"
        return slow / fast

    return get


def verdict(base: str, other: str, sample: str) -> Callable[[Record], str]:
    """Whether `other` is faster or slower than `base` in a joined row; VERDICT_NOTE says how it is decided.

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


VERDICT_NOTE = (
    "faster, slower: every sample of the one is below every sample of the other, within one process each; from "
    f"{ROUNDS_FOR_INTERVAL} rounds on, the bootstrap interval of the ratio of medians excludes one. Else: cannot tell."
)


def judged(base: Rounds, other: Rounds) -> str:
    """The verdict on `other` against `base` from their rounds of samples."""
    if len(base) == len(other) >= ROUNDS_FOR_INTERVAL:
        return ratio(base, other).verdict
    first, second = np.concatenate(list(map(np.asarray, base))), np.concatenate(list(map(np.asarray, other)))
    if second.max() < first.min():
        return FASTER
    return SLOWER if second.min() > first.max() else CANNOT_TELL


def counted(verdicts: Iterable[str]) -> Mapping[str, int]:
    """How often each verdict fell."""
    found = list(verdicts)
    return {word: found.count(word) for word in (FASTER, SLOWER, CANNOT_TELL)}
