"""The sentences that answer the questions of the DDP problems."""

from __future__ import annotations

import pandas as pd

from perfscribe.experiments.ddp import counts
from perfscribe.experiments.ddp import published as beside
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.ddp.columns import HOST_THREADS
from perfscribe.experiments.ddp.overhead import NO_MODEL, NOT_TOLD
from perfscribe.experiments.ddp.sentences import (
    against,
    cells,
    cells_with,
    exposed,
    listed,
    ms,
    name_of,
)
from perfscribe.findings import CannotTell, counted, is_number, need, shown, spread_of
from perfscribe.statistics import format_figure

NOT_FITTED = (NOT_TOLD, NO_MODEL)
HALF = 0.5
ALIKE = 0.01  # relative: times that differ by less are as long
WAITS = 1.2  # communication that takes longer than so many times what its bytes take alone is waiting as well


def check(rows: pd.DataFrame) -> str:
    """How far ranks are from a single process."""
    need(rows, 1, "cells")
    parts = []
    for dtype, own in rows.groupby("dtype", sort=False):
        worst = own.loc[own["error"].astype(float).idxmax()]
        parts.append(
            f"{dtype} {format_figure(float(worst['error']), digits=2)} ({name_of(worst)}, {worst['world_size']} "
            f"processes; {float(worst['allowed']):g} is allowed)"
        )
    return (
        f"Yes: after {v.CHECKED_STEPS} steps the largest relative error of any parameter tensor's change, in "
        f"{len(rows)} comparisons, is in {'; in '.join(parts)}. Each timed model's gradients were the "
        "same to the last bit on all ranks."
    )


def naive(rows: pd.DataFrame, phases: pd.DataFrame, traced: pd.DataFrame) -> str:
    """Setup, step, communication and share of naive; what the same bytes take alone, and who sets the pace."""
    parts, waits = [], False
    for name, (row, phase) in cells_with(rows, (rows, v.NAIVE), (phases, v.NAIVE)):
        alone = phase["alone_ms"]
        by_itself = f", which by themselves take {ms(phase, 'alone_ms')}" if is_number(alone) else ""
        waits = waits or (is_number(alone) and float(row["spent_ms"]) > WAITS * float(alone))
        parts.append(
            f"with {name} a step takes {ms(row, 'step_ms')}; of steps that wait after each phase "
            f"({ms(phase, 'marked_step_ms')}) {ms(row, 'spent_ms')}, {shown(row, 'spent_percent')} %, "
            f"are communication, {row['all_reduces']} all-reduces of {format_figure(float(phase['sent_mib']))} MiB "
            f"together{by_itself}"
        )
    beyond = " What communication takes beyond that is waiting for other ranks or for the host." if waits else ""
    return f"One process a device, on one machine: {listed(rows, parts)}{beyond}{_pace(rows, traced)}"


def _pace(rows: pd.DataFrame, traced: pd.DataFrame) -> str:
    """The cells in which a GPU computes for less than half of naive's step; the step is that of the untraced ones."""
    parts = []
    for name, (row, trace) in cells_with(rows, (rows, v.NAIVE), (traced, v.NAIVE)):
        on_gpu = trace["streams"] != HOST_THREADS  # a profiler slows operators, but no kernels
        if on_gpu and float(trace["traced_compute_ms"]) < HALF * float(row["step_ms"]):
            parts.append(f"{ms(trace, 'traced_compute_ms')} of {ms(row, 'step_ms')} with {name}")
    if not parts:
        return ""
    return (
        f" The GPU of rank 0 computes for {'; '.join(parts)}, by the trace: under half of the step, so that the host, "
        "which launches its work, or the other ranks set the pace."
    )


def flat(rows: pd.DataFrame, phases: pd.DataFrame, compared: pd.DataFrame) -> str:
    """One all-reduce against one for each tensor."""
    parts = []
    wanted = [(rows, v.FLAT), (rows, v.NAIVE), (phases, v.FLAT), (compared, v.FLAT)]
    for name, (one, many, phase, ratio) in cells_with(rows, *wanted):
        parts.append(
            f"with {name} communication takes {ms(one, 'spent_ms')} in {counted(one['all_reduces'], 'call')} against "
            f"{ms(many, 'spent_ms')} in {many['all_reduces']} ({_change(phase)}), {ms(phase, 'copies_ms')} of it "
            f"copies into the flat tensor and back, and the step {ms(one, 'step_ms')} against {ms(many, 'step_ms')}, "
            f"{against(ratio, 'naive')}"
        )
    return f"One call would save the fixed cost of the others, and costs two copies: {listed(rows, parts)}"


def _change(phase: pd.Series) -> str:
    """One call's communication against that of many, turn by turn."""
    ratio = float(phase["communication_ratio"])
    if abs(ratio - 1) < ALIKE:
        return "as long"
    if phase["communication_verdict"] == "cannot tell":
        interval = f"interval {phase['communication_interval']}"
        return f"{shown(phase, 'communication_ratio')} ×, {interval}: which is shorter cannot be told"
    return f"{format_figure(100 * abs(1 - ratio))} % {'less' if ratio < 1 else 'more'}"


def overlap(rows: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Overlapped against naive and flat."""
    parts = []
    wanted = [(rows, v.OVERLAP), (compared, v.OVERLAP), *((rows, other) for other in v.AFTER_BACKWARD)]
    for name, (row, ratio, *others) in cells_with(rows, *wanted):
        steps = ", ".join(f"{name_of(other)} {ms(other, 'step_ms')}" for other in others)
        parts.append(
            f"with {name} the step takes {ms(row, 'step_ms')} ({steps}), {against(ratio, 'naive')}; exposed are "
            f"{exposed(row)}{_of_naives(row)}"
        )
    return f"When each gradient is sent during backward, {listed(rows, parts)}"


def _of_naives(row: pd.Series) -> str:
    """Exposed communication as a part of naive's, where both are told from none."""
    name, low = "exposed_percent_of_naive", row["exposed_low_ms"]
    if not (is_number(row[name]) and is_number(low)) or float(low) <= 0:
        return ""
    return f", {shown(row, name)} % of what naive exposes"


def timeline(rows: pd.DataFrame) -> str:
    """How much of the communication ran beside compute."""
    parts = []
    for name, own in cells(rows):
        shares = ", ".join(
            f"{name_of(row)} {format_figure(float(row['hidden_percent']))} % of {ms(row, 'traced_communication_ms')}"
            for _, row in own.iterrows()
        )
        parts.append(f"{name}: {shares}")
    return f"Of the communication this ran while the same rank computed, in a traced step: {listed(rows, parts)}"


def bucketed(rows: pd.DataFrame) -> tuple[str, str]:
    """The step by number of buckets, in cells with several, and which numbers are told from the least."""
    parts, verdicts = [], []
    for name, own in cells(rows):
        if len(own) < 2:
            continue
        groups = [group for _, group in own.groupby("buckets")]
        of_counts = "; ".join(_of_count(group) for group in groups)
        parts.append(f"with {name} {of_counts}{_none_exposed(own)}")
        verdicts += [str(group.iloc[0]["least_verdict"]) for group in groups]
    if not parts:
        raise CannotTell("no cell has several bucket sizes")
    told = {"faster", "slower"} & set(verdicts)
    return f"The step by number of buckets, {listed(rows, parts)}", "answered" if told else "cannot tell"


def _of_count(group: pd.DataFrame) -> str:
    """One number of buckets: the sizes that give it, step, exposed time, and how it stands to the least."""
    sizes = ", ".join(f"{float(size):g}" for size in group["bucket_mb"])
    steps, left = (" and ".join(ms(row, name) for _, row in group.iterrows()) for name in ("step_ms", "exposed_ms"))
    row = group.iloc[0]
    compared = {counts.ITSELF: "the least", counts.NO_OTHER: "no other number"}.get(row["least_verdict"])
    if compared is None:
        compared = against(row, "least")
    return f"{counted(row['buckets'], 'bucket')} ({sizes} MB) {steps}, {compared}, exposed {left}"


def _none_exposed(own: pd.DataFrame) -> str:
    """What is to be said where each interval of exposed time holds 0."""
    ends = own[["exposed_low_ms", "exposed_high_ms"]]
    if not ends.map(is_number).all(axis=None) or not (ends.astype(float).prod(axis=1) <= 0).all():
        return ""
    return " (no exposed time is told from 0 ms)"


def model(rows: pd.DataFrame) -> tuple[str, str]:
    """The fitted model, the size that it predicts and the one that was found, of cells with several bucket sizes."""
    parts, fitted = [], False
    for name, own in cells(rows):
        row, errors = own.iloc[0], own["residual_ms"]
        if row["residual_ms"] in NOT_FITTED:
            parts.append(f"with {name} {row['residual_ms']}")
        elif errors.map(is_number).all():
            parts.append(f"with {name} {_fitted(row, errors)}")
            fitted = True
    if not parts:
        raise CannotTell("too few numbers of buckets for a fit in any cell")
    return (
        "Exposed = s / (n_b·w) + n_b·o, least for n_b = √(s / (o·w)), that is buckets of √(s·w·o). "
        f"Here {listed(rows, parts)}"
    ), "answered" if fitted else "cannot tell"


def _fitted(row: pd.Series, errors: pd.Series) -> str:
    rates = [
        f"{symbol} = {_figure(row[column], unit)}"
        for symbol, column, unit in (("w", "bandwidth", "GB/s"), ("o", "call_us", "µs"))
    ]
    predicted = row["best_bucket_mb"]
    said = f"of {format_figure(float(predicted))} MB" if is_number(predicted) else f"unknown ({predicted})"
    worst = format_figure(float(errors.astype(float).abs().max()), spread_of(row, "exposed_ms"))
    return f"{', '.join(rates)}, residuals up to {worst} ms; best buckets predicted {said}, found {row['found_bucket']}"


def _figure(value: object, unit: str) -> str:
    return f"{format_figure(float(str(value)))} {unit}" if is_number(value) else str(value)


def torch_ddp(rows: pd.DataFrame) -> str:
    """Ours against PyTorch's DistributedDataParallel."""
    parts = []
    for name, own in cells(rows):
        ours = own[own["implementation"].isin([v.OVERLAP, v.BUCKETED])]
        ours = ours[ours["torch_ratio"].map(is_number)] if len(ours) else ours
        if len(ours):
            compared = [f"{name_of(row)} {against(row, 'torch')}" for _, row in ours.iterrows()]
            parts.append(f"with {name} {', '.join(compared)}")
    return f"Steps of ours, in the same turns: {listed(rows, parts)}"


def published(rows: pd.DataFrame, compared: pd.DataFrame) -> tuple[str, str]:
    """Whether overlap gains as much of naive's communication here as in published runs."""
    ours, verdicts = [], []
    wanted = [(rows, v.NAIVE), (rows, v.OVERLAP), (compared, v.OVERLAP)]
    for name, (naive_row, _, ratio) in cells_with(rows, *wanted):
        verdicts.append(str(ratio["naive_verdict"]))
        ours.append(f"with {name} {_gain(naive_row, ratio)}")
    if not ours:
        raise CannotTell("no cell holds naive and overlap_individual")
    theirs = [
        f"{format_figure(gains[v.OVERLAP], digits=2)} % ({setting})"
        for setting, gains in beside.gains().items()
        if v.OVERLAP in gains
    ]
    text = (
        f"Overlapping single gradients: here {'; '.join(ours)}. In published runs it saves of naive's communication "
        f"{'; '.join(theirs)}. There overlap shortens the step in every setting; here {_tally(verdicts)}."
    )
    if set(verdicts) == {"faster"}:
        return text, "confirmed"
    return text, "contradicted" if "slower" in verdicts else "cannot tell"


def _gain(naive_row: pd.Series, ratio: pd.Series) -> str:
    """The step's ratio; where it is told, what that saves beside what naive exposes: each strays, so no part is made.

    All of the same steps: those that wait after each phase, whose communication is timed, are others.
    """
    said = f"the step is {against(ratio, 'naive')}"
    ends = [ratio[f"naive_{end}"] for end in ("ratio", "high", "low")]
    if ratio["naive_verdict"] == "cannot tell" or not all(map(is_number, ends)):
        return said
    saved, low, high = ((1 - float(end)) * float(naive_row["step_ms"]) for end in ends)
    if saved < 0:
        return f"{said}, and nothing is saved"
    whole = exposed(naive_row) if float(naive_row["exposed_ms"]) > 0 else "nothing"
    return f"{said}, which saves {format_figure(saved, (high - low) / 2)} ms where naive exposes {whole}"


def _tally(verdicts: list[str]) -> str:
    """How often overlap is faster, slower, or neither for certain."""
    said = {
        "faster": "it shortens the step",
        "slower": "it lengthens the step",
        "cannot tell": "whether it does cannot be told",
    }
    counts = [f"{words} in {verdicts.count(one)}" for one, words in said.items() if one in verdicts]
    return f"{' and '.join(counts)} of {counted(len(verdicts), 'cell')}"
