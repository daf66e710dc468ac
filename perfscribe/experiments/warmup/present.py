"""Tables, figure and answer of benchmarking_script's question about warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, find, from_to, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure, steady_from
from perfscribe.tables import Table

TABLES = ("cs336.benchmarking_warmup", "cs336.benchmarking_steps")
FIGURES = ("cs336.benchmarking_steps",)
SETTING = ("size", "seq_len", "dtype", "device")
PHASES = ("forward", "backward", "optimizer")
NUMBERS = {1: "one step", 2: "two"}
# A phase has most of what a first step takes longer where its share is above this in every size.
MOST_PERCENT = 50
NOTE = (
    "Each row is a process of its own, in which nothing but making the model and the optimizer comes before the first "
    "step. Steady from: the first step, warm-up counted, after which a rolling median stays within 1 % of the last "
    "steps' median. No step is dropped from the samples."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a number of warm-up steps; and every single step."""
    cells = records["warmup"]
    return [
        t.make(TABLES[0], "Training steps after few warm-up steps", cells, _columns(), [NOTE]),
        t.make(TABLES[1], "Every single step", _single_steps(cells), _step_columns()),
    ]


def _factors(*more: t.Column) -> list[t.Column]:
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        t.factor("warmup_steps", "Warm-up steps"),
        *more,
    ]


def _columns() -> list[t.Column]:
    known = ("size", "seq_len", "batch", "dtype", "warmup_steps")
    return [
        *_factors(),
        t.mean("forward_ms", "Forward, mean (ms)"),
        t.std("forward_ms", "Std (ms)"),
        t.published("end_to_end", "forward_ms", "brandon-snider", "Forward, brandon-snider (ms)", known),
        t.published("end_to_end", "forward_std_ms", "brandon-snider", "Std, brandon-snider (ms)", known),
        t.mean("backward_ms", "Backward, mean (ms)"),
        t.std("backward_ms", "Std (ms)"),
        t.derived("first_step_ms", "First timed step (ms)", _first("full_step")),
        *(t.derived(f"first_{phase}_ms", f"Of it {phase} (ms)", _first(phase)) for phase in PHASES),
        *(t.Column(f"{phase}_ms", f"{phase}, median (ms)", _warm(phase), kind="unshown") for phase in PHASES),
        t.median("full_step_ms", "Full step, median (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.derived("steady_from", "Steady from step", _steady, exact=True),
        t.count("full_step_ms"),
    ]


def _first(name: str) -> Callable[[Record], float]:
    """Of the first timed step."""
    return lambda record: float(record.samples[f"{name}_ms"][0][0])


def _warm(phase: str) -> Callable[[Record], float]:
    """Of the timed steps."""
    return lambda record: t.summary(record, f"{phase}_ms").median


def _steady(record: Record) -> Any:
    steps = [*record.warmup.get("full_step_ms", [[]])[0], *record.samples["full_step_ms"][0]]
    found = steady_from(steps)
    return "never within 1 %" if found is None else found + 1


def _single_steps(cells: list[Record]) -> list[Record]:
    """One record a step, warm-up steps first; a cell without figures stays one row."""
    rows: list[Record] = []
    for record in cells:
        if not record.ok:
            rows.append(replace(record, factors={**record.factors, "step": "all"}))
            continue
        before = record.warmup.get("full_step_ms", [[]])[0]
        for number, time_ms in enumerate([*before, *record.samples["full_step_ms"][0]], start=1):
            values = {"step_ms": time_ms, "kind": "warm-up" if number <= len(before) else "timed"}
            rows.append(replace(record, factors={**record.factors, "step": number}, samples={}, values=values))
    return rows


def _step_columns() -> list[t.Column]:
    return [
        *_factors(t.factor("step", "Step")),
        t.value("kind", "Kind", exact=True),
        t.value("step_ms", "Full step (ms)"),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What the first steps cost without warm-up."""
    rows = tables[TABLES[0]].ok
    return [find("cs336.benchmarking_warmup", TABLES[:1], lambda: _without_warmup(rows))]


def _without_warmup(rows: pd.DataFrame) -> str:
    """What the first steps take, which part of the first one is longer, and what that does to means."""
    cold = _beside_warm(rows, need(rows[rows["warmup_steps"] == 0], 1, "cells without warm-up"))
    if not cold:
        raise CannotTell("no size was measured both with and without warm-up")
    told = "; ".join(_means(row, warm) for row, warm in cold)
    before = max(int(warm["warmup_steps"]) for _, warm in cold)
    return (
        f"Without warm-up the first step takes {_times(cold)} as long as steps that {before} others came "
        f"before.{_after_few(rows)}{_why(cold)} {told}."
    )


def _beside_warm(rows: pd.DataFrame, chosen: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    """Each of these rows, and that of the same setting with most steps before those that are timed."""
    warmest = rows[rows["warmup_steps"] == rows["warmup_steps"].max()]
    found = []
    for _, row in chosen.iterrows():
        same = warmest[(warmest[list(SETTING)] == row[list(SETTING)]).all(axis=1)]
        if len(same) and same["warmup_steps"].iloc[0] > row["warmup_steps"]:
            found.append((row, same.iloc[0]))
    return found


def _times(pairs: Sequence[tuple[pd.Series, pd.Series]]) -> str:
    """First timed steps over warm ones, of each setting, and how many the spread of warm ones does not tell apart."""
    ratios = [float(row["first_step_ms"]) / float(warm["full_step_ms"]) for row, warm in pairs]
    near = sum(not _is_longer(row, warm) for row, warm in pairs)
    of = "" if len(pairs) == 1 else f" in {near} of {len(pairs)} sizes"
    within = f" (within the spread of these{of})" if near else ""
    return f"{from_to(ratios)} times{within}"


def _is_longer(row: pd.Series, warm: pd.Series) -> bool:
    """Whether the first timed step is longer than warm ones by more than these differ among themselves."""
    spread = pd.to_numeric(warm["full_step_ms_iqr"], errors="coerce")
    longer = float(row["first_step_ms"]) - float(warm["full_step_ms"])
    return longer > (0.0 if pd.isna(spread) else float(spread))


def _after_few(rows: pd.DataFrame) -> str:
    """The same of the step behind one and behind two."""
    said = [
        f"of {name} it takes {_times(pairs)}"
        for number, name in NUMBERS.items()
        if (pairs := _beside_warm(rows, rows[rows["warmup_steps"] == number]))
    ]
    return f" After a warm-up {', '.join(said)} as long." if said else ""


def _why(cold: Sequence[tuple[pd.Series, pd.Series]]) -> str:
    """In which part of a first step the time is spent that later ones do not take; "" where none is longer."""
    longer = [(row, warm) for row, warm in cold if _is_longer(row, warm)]
    found = [shares for row, warm in longer if (shares := _shares(row, warm))]
    if not found:
        return ""
    by_phase = {phase: [shares[phase] for shares in found] for phase in PHASES}
    said = ", ".join(f"{phase} {_percents(shares)}" for phase, shares in by_phase.items())
    of = "" if len(cold) == 1 else f" in {len(found)} of {len(cold)} sizes"
    most = [phase for phase, shares in by_phase.items() if min(shares) > MOST_PERCENT]
    return f" Of what the first one takes longer{of}: {said}.{_paid_once(most[0]) if most else ''}"


def _paid_once(phase: str) -> str:
    """What may be in the phase that has most of it in every size."""
    return (
        f" {phase.capitalize()} has most of it: a process pays there what it pays once, such as loading code and "
        "filling caches; the optimizer makes its state in its first step. These are not timed apart."
    )


def _percents(shares: Sequence[float]) -> str:
    said = from_to(shares, lambda share: f"{share:.0f}" if share >= 0.5 else "none")
    return said if said == "none" else f"{said} %"


def _shares(row: pd.Series, warm: pd.Series) -> dict[str, float]:
    """Percent of what a first step's phases take longer than those of warm ones; {} where together they do not."""
    more = {name: float(row[f"first_{name}_ms"]) - float(warm[f"{name}_ms"]) for name in PHASES}
    if sum(more.values()) <= 0:
        return {}
    longer = {name: max(0.0, ms) for name, ms in more.items()}  # a phase that is shorter has no part in it
    return {name: 100 * ms / sum(longer.values()) for name, ms in longer.items()}


def _means(row: pd.Series, warm: pd.Series) -> str:
    """First step and mean forward of a size, cold and warm."""
    before, after = (
        f"{format_figure(float(r['forward_ms_mean']))} ms with a standard deviation of "
        f"{format_figure(float(r['forward_ms_std']))} ms"
        for r in (row, warm)
    )
    return (
        f"{row['size']}: first step {format_figure(float(row['first_step_ms']))} ms against "
        f"{format_figure(float(warm['full_step_ms']))} ms once warm; mean forward {before}, against {after}"
    )


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Every single step, one panel a number of warm-up steps."""
    caption = (
        "Every step of a fresh process from the first on, warm-up steps hollow: forward, backward and optimizer "
        "together; one panel a number of warm-up steps, one line a size."
    )
    return [f.Figure(FIGURES[0], caption, lambda canvas: _draw(canvas, tables[TABLES[1]]), (7.0, 4.2), "full_step_ms")]


def _draw(canvas: Any, table: Table) -> None:
    rows = table.ok
    levels = sorted(set(rows["warmup_steps"])) or [0]
    for axes, level in zip(canvas.subplots(1, len(levels), sharey=True, squeeze=False)[0], levels, strict=True):
        chosen = rows[rows["warmup_steps"] == level]
        axes.set_title(f"warm-up {level}")
        if chosen.empty:
            f.no_data(axes, "no cell was measured")
            continue
        by = f.varying(chosen, ("size", "seq_len", "dtype", "device"))
        f.lines(axes, chosen, "step", "step_ms", by, lambda levels: " ".join(map(str, levels)))
        waiting = chosen[chosen["kind"] == "warm-up"]
        axes.plot(
            waiting["step"].astype(float), waiting["step_ms"].astype(float), "o", color="white", markersize=2, zorder=5
        )
        axes.set_xscale("linear")
        axes.set_xlabel("Step")
    canvas.axes[0].set_ylabel("Full step (ms)")
