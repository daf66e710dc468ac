"""The sentences that answer the questions of the DDP problems."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfscribe.experiments.ddp import published as beside
from perfscribe.experiments.ddp import variants as v
from perfscribe.findings import CannotTell, need
from perfscribe.statistics import format_figure

CELL = ["size", "seq_len", "batch", "world_size", "backend", "dtype"]


def _cells(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each cell, with its name for a sentence."""
    need(rows, 1, "cells")
    for (size, seq_len, batch, world_size, backend, dtype), own in rows.groupby(CELL, sort=False):
        yield f"{size}, context {seq_len}, global batch {batch}, {world_size} processes, {backend}, {dtype}", own


def _of(rows: pd.DataFrame, implementation: str) -> pd.Series | None:
    """The row of an implementation."""
    found = rows[rows["implementation"] == implementation]
    return None if found.empty else found.iloc[0]


def _ms(row: pd.Series, name: str) -> str:
    return f"{format_figure(float(row[name]))} ms"


def _name(row: pd.Series) -> str:
    bucketed = row.get("implementation", v.BUCKETED) == v.BUCKETED
    return f"buckets of {float(row['bucket_mb']):g} MB" if bucketed else str(row["implementation"])


def check(rows: pd.DataFrame) -> str:
    """How far ranks are from a single process."""
    need(rows, 1, "cells")
    parts = []
    for dtype, own in rows.groupby("dtype", sort=False):
        worst = own.loc[own["error"].astype(float).idxmax()]
        parts.append(
            f"{dtype} {format_figure(float(worst['error']), digits=2)} ({_name(worst)}, {worst['world_size']} "
            f"processes; {float(worst['allowed']):g} is allowed)"
        )
    return (
        f"Yes: after {v.CHECKED_STEPS} steps the largest relative error of any parameter tensor's change, over "
        f"{len(rows)} runs of an implementation, is in {'; in '.join(parts)}. Each timed model's gradients were the "
        "same to the last bit on all ranks."
    )


def naive(rows: pd.DataFrame, phases: pd.DataFrame) -> str:
    """Setup, step, communication and share of naive."""
    parts = []
    for name, own in _cells(rows):
        row, phase = _of(own, v.NAIVE), _of(_same(phases, own), v.NAIVE)
        if row is None or phase is None:
            continue
        parts.append(
            f"{name}: a step takes {_ms(row, 'step_ms')}, of which {_ms(row, 'spent_ms')} "
            f"({format_figure(float(row['spent_percent']))} %) are communication, {row['all_reduces']} all-reduces of "
            f"{format_figure(float(phase['sent_mib']))} MiB together"
        )
    return f"One process a device, on one machine. {_listed(parts)}"


def _same(rows: pd.DataFrame, cell: pd.DataFrame) -> pd.DataFrame:
    """The rows of the same cell in another table."""
    if rows.empty:
        return rows
    return rows[(rows[CELL] == cell.iloc[0][CELL]).all(axis=1)]


def _listed(parts: list[str]) -> str:
    if not parts:
        raise CannotTell("no cell holds the implementations that are compared")
    return "; ".join(parts) + "."


def flat(rows: pd.DataFrame, phases: pd.DataFrame) -> str:
    """One all-reduce against one for each tensor."""
    parts = []
    for name, own in _cells(rows):
        one, many, phase = _of(own, v.FLAT), _of(own, v.NAIVE), _of(_same(phases, own), v.FLAT)
        if one is None or many is None or phase is None:
            continue
        less = 100 * (1 - float(one["spent_ms"]) / float(many["spent_ms"]))
        change = f"{format_figure(abs(less))} % {'less' if less >= 0 else 'more'}"
        parts.append(
            f"{name}: communication {_ms(one, 'spent_ms')} in {one['all_reduces']} call against "
            f"{_ms(many, 'spent_ms')} in {many['all_reduces']} ({change}), {_ms(phase, 'copies_ms')} of it copies into "
            f"the flat tensor and back; step {_ms(one, 'step_ms')} against {_ms(many, 'step_ms')}"
        )
    return f"What one call saves is the fixed cost of the others; what it costs are two copies. {_listed(parts)}"


def overlap(rows: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Overlapped against naive and flat."""
    parts = []
    for name, own in _cells(rows):
        row, others = _of(own, v.OVERLAP), [_of(own, other) for other in v.AFTER_BACKWARD]
        against = _of(_same(compared, own), v.OVERLAP)
        if row is None or against is None or any(other is None for other in others):
            continue
        steps = ", ".join(f"{_name(other)} {_ms(other, 'step_ms')}" for other in others if other is not None)
        parts.append(
            f"{name}: step {_ms(row, 'step_ms')} ({steps}); {_against(against, 'naive')}; exposed are "
            f"{_ms(row, 'exposed_ms')} (interval {row['exposed_interval']}), "
            f"{format_figure(float(row['exposed_percent_of_naive']))} % of naive's communication"
        )
    return _listed(parts)


def _against(row: pd.Series, whose: str) -> str:
    names = {"naive": "naive's", "torch": "PyTorch's"}
    verdict = str(row[f"{whose}_verdict"])
    said = "which is faster cannot be told" if verdict == "cannot tell" else verdict
    return (
        f"{format_figure(float(row[f'{whose}_ratio']))} × {names[whose]} (interval {row[f'{whose}_interval']}, {said})"
    )


def timeline(rows: pd.DataFrame) -> str:
    """How much of the communication ran beside compute."""
    parts = []
    for name, own in _cells(rows):
        shares = ", ".join(
            f"{_name(row)} {format_figure(float(row['hidden_percent']))} % of {_ms(row, 'traced_communication_ms')}"
            for _, row in own.iterrows()
        )
        parts.append(f"{name}: {shares}")
    return f"Of the communication this ran while the same rank computed, in a traced step: {_listed(parts)}"


def bucketed(rows: pd.DataFrame) -> str:
    """Whether the bucket size matters."""
    parts = []
    for name, own in _cells(rows):
        need(own, 2, "bucket sizes")
        steps = own["step_ms"].astype(float)
        best, worst = own.loc[steps.idxmin()], own.loc[steps.idxmax()]
        spread = 100 * (steps.max() / steps.min() - 1)
        parts.append(
            f"{name}: least with {_name(best)} ({_ms(best, 'step_ms')}, {best['buckets']} buckets), most with "
            f"{_name(worst)} ({_ms(worst, 'step_ms')}, {worst['buckets']}), {format_figure(spread, digits=2)} % more; "
            f"exposed are {_exposed(own)}"
        )
    return _listed(parts)


def _exposed(rows: pd.DataFrame) -> str:
    return ", ".join(f"{_ms(row, 'exposed_ms')} at {float(row['bucket_mb']):g} MB" for _, row in rows.iterrows())


def model(rows: pd.DataFrame) -> str:
    """The fitted model, the size that it predicts and the one that was found."""
    parts = []
    for name, own in _cells(rows):
        row = own.iloc[0]
        rates = [
            f"{symbol} = {_figure(row[column], unit)}"
            for symbol, column, unit in (("w", "bandwidth", "GB/s"), ("o", "call_us", "µs"))
        ]
        predicted = row["best_bucket_mb"]
        said = f"of {format_figure(float(predicted))} MB" if _is_number(predicted) else f"unknown ({predicted})"
        off = own["residual_ms"].map(lambda one: abs(float(one)) if _is_number(one) else None).max()
        fit = f", residuals up to {format_figure(float(off))} ms" if pd.notna(off) else ""
        parts.append(f"{name}: {', '.join(rates)}{fit}; best buckets predicted {said}, found {row['found_bucket']}")
    return (
        "Exposed = s / (n_b·w) + n_b·o, least for n_b = √(s / (o·w)), that is buckets of √(s·w·o). "
        f"Fitted: {_listed(parts)}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figure(value: object, unit: str) -> str:
    return f"{format_figure(float(str(value)))} {unit}" if _is_number(value) else str(value)


def torch_ddp(rows: pd.DataFrame) -> str:
    """Ours against PyTorch's DistributedDataParallel."""
    parts = []
    for name, own in _cells(rows):
        ours = own[own["implementation"].isin([v.OVERLAP, v.BUCKETED])]
        ours = ours[ours["torch_ratio"].map(_is_number)] if len(ours) else ours
        if ours.empty:
            continue
        compared = [f"{_name(row)} {_against(row, 'torch')}" for _, row in ours.iterrows()]
        parts.append(f"{name}: {', '.join(compared)}")
    return f"Steps of ours, in the same turns: {_listed(parts)}"


def published(rows: pd.DataFrame, compared: pd.DataFrame) -> tuple[str, str]:
    """Whether overlap gains as much of naive's communication here as in published runs."""
    ours, verdicts = [], []
    for name, own in _cells(rows):
        naive_row, row = _of(own, v.NAIVE), _of(own, v.OVERLAP)
        against = _of(_same(compared, own), v.OVERLAP)
        if naive_row is None or row is None or against is None:
            continue
        gain = 100 * (float(naive_row["step_ms"]) - float(row["step_ms"])) / float(naive_row["spent_ms"])
        verdicts.append(str(against["naive_verdict"]))
        ours.append(f"{format_figure(gain, digits=2)} % ({name})")
    if not ours:
        raise CannotTell("no cell holds naive and overlap_individual")
    theirs = [
        f"{format_figure(gains[v.OVERLAP], digits=2)} % ({setting})"
        for setting, gains in beside.gains().items()
        if v.OVERLAP in gains
    ]
    text = (
        f"Overlapping single gradients saves of naive's communication here {'; '.join(ours)}; in published runs "
        f"{'; '.join(theirs)}. There overlap shortens the step in every setting; here it is "
        f"{', '.join(f'{verdicts.count(one)} × {one}' for one in dict.fromkeys(verdicts))}."
    )
    if set(verdicts) == {"faster"}:
        return text, "confirmed"
    return text, "contradicted" if "slower" in verdicts else "cannot tell"
