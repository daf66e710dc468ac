"""The sentences that answer the questions about data types."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe.epoch_columns import main_device, span
from perfscribe.findings import CannotTell, from_to, need, ratio_of, shown_from_to
from perfscribe.statistics import format_figure as figure

HALF = ("fp16", "bf16")
SEED = "polaris-homework-001"
OF_WORK = 0.5  # share of the work's growth above which time is said to follow it
MUCH = 0.5  # of a later epoch: what a first one takes more from which on it is told
LESS = 0.995  # a ratio of peaks above it counts as the same
OF_SCRIPT = 512  # the width that write-up 001's model kept


def _claimed(metric: str, dtype: str, length: int) -> float:
    """Write-up 001's figure at its one width."""
    known = references.load("dtypes")
    (found,) = [
        reference
        for reference in references.find(known, metric, d_model=OF_SCRIPT, dtype=dtype, seq_len=length)
        if reference.source == SEED
    ]
    return float(found.value or 0)


def _claimed_ratios(metric: str, dtype: str) -> list[float]:
    """The write-up's dtype over its fp32, at the lengths where it has both."""
    known = references.find(references.load("dtypes"), metric, d_model=OF_SCRIPT, dtype=dtype)
    lengths = [int(reference.factors["seq_len"]) for reference in known]
    return [_claimed(metric, dtype, length) / _claimed(metric, "fp32", length) for length in lengths]


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    return pd.to_numeric(rows[column], errors="coerce").dropna()


def _halves(against: pd.DataFrame) -> pd.DataFrame:
    """Rows of fp16 and bf16 whose fp32 was measured, on one device."""
    rows = main_device(against)
    rows = rows[rows["dtype"].isin(HALF)]
    return need(rows.loc[_numbers(rows, "time_ratio").index], 1, "cells in fp16 or bf16 beside fp32")


def _by_width(rows: pd.DataFrame, column: str) -> str:
    parts = []
    for width, group in rows.groupby("d_model"):
        of_dtype = [
            f"{dtype} {shown_from_to(chosen, column)}"
            for dtype, chosen in group.groupby("dtype", sort=False)
            if len(_numbers(chosen, column))
        ]
        parts.append(f"d_model {width}: {', '.join(of_dtype)}")
    return "; ".join(parts)


def time(asked: pd.DataFrame, against: pd.DataFrame) -> str:
    """Time against fp32 by width, beside the write-up's, and whether the narrow model is bound by its launches."""
    rows = _halves(against)
    lie = {word: int((rows["epochs_apart"] == word).sum()) for word in ("all quicker", "all slower", "overlap")}
    claimed = [ratio for dtype in HALF for ratio in _claimed_ratios("training_s", dtype)]
    return (
        f"Time of a later epoch over fp32's, over the target lengths: {_by_width(rows, 'time_ratio')}. In "
        f"{lie['all quicker']} of {len(rows)} cells every later epoch is quicker than fp32's, in {lie['all slower']} "
        f"slower, in {lie['overlap']} they overlap. Write-up 001, at d_model {OF_SCRIPT} and with the first steps "
        f"in its time, has {span(min(claimed), max(claimed))}. {_bound(asked, rows)}"
    )


def _bound(asked: pd.DataFrame, halves: pd.DataFrame) -> str:
    """Whether fp32's time on the narrowest model grows with the target length, as its work does.

    halves: rows of fp16 and bf16 with their time against fp32's.
    """
    rows = main_device(asked)
    rows = rows[rows["dtype"] == "fp32"]
    narrow = rows[rows["d_model"] == rows["d_model"].min()].sort_values("target_length", kind="stable")
    if len(narrow) < 2:
        return ""
    few, many = narrow.iloc[0], narrow.iloc[-1]
    work = int(many["target_length"]) / int(few["target_length"])
    growth = ratio_of(many, few, "epoch_s")
    text = f"At d_model {few['d_model']}, {work:g} times the target length takes fp32 {growth} times as long"
    if float(many["epoch_s"]) > float(few["epoch_s"]) * work * OF_WORK:
        return f"{text}: its time is that of its work."
    text = (
        f"{text}: it is not bound by its work, but by what comes with each kernel, such as its launch (not traced "
        "here), of which autocast has more"
    )
    there = halves[halves["d_model"] == few["d_model"]]
    if not len(_numbers(there, "time_ratio")):
        return f"{text}."
    return f"{text}: autocast takes {shown_from_to(there, 'time_ratio')} times as long as fp32 there."


def first(asked: pd.DataFrame) -> str:
    """What the first epochs cost more than later ones, for the first cell and for the rest."""
    rows = need(main_device(asked), 2, "cells")
    extra = rows["first_epoch_s"].astype(float) - rows["epoch_s"].astype(float)
    worst = rows.loc[extra.idxmax()]
    much = rows[extra > MUCH * rows["epoch_s"].astype(float)]
    base, longer = _claimed("training_s", "fp32", 20), _claimed("training_s", "fp32", 50)
    return (
        f"A first epoch takes {figure(extra.median())} s more than a later one (median over {len(rows)} cells), at "
        f"most {figure(extra.max())} s (d_model {worst['d_model']}, target length {worst['target_length']}, "
        f"{worst['dtype']}); {_of_half(much, len(rows))}. Cells share a process, so that a later one finds loaded what "
        f"an earlier one needed, too. Write-up 001's length 20 took {figure(base)} s and its length 50 "
        f"{figure(longer)} s: the shorter one ran first."
    )


def _of_half(much: pd.DataFrame, cells: int) -> str:
    """How many cells' first epoch takes much longer, and how many of these are in half precision."""
    if much.empty:
        return f"none of {cells} takes more than half as long again"
    half = int(much["dtype"].isin(HALF).sum())
    words = "all" if half == len(much) else half or "none"
    return f"{len(much)} of {cells} take more than half as long again, {words} of them in half precision"


def memory(against: pd.DataFrame, predicted: pd.DataFrame) -> tuple[str, str]:
    """Whether bf16 takes less memory everywhere, and what autocast cannot save."""
    rows = _halves(against)
    bf16 = need(rows[rows["dtype"] == "bf16"], 1, "cells in bf16")
    ratios = _numbers(bf16, "memory_ratio")
    less = int((ratios < LESS).sum())
    claimed = _claimed_ratios("peak_memory_gib", "bf16")
    text = (
        f"Peak memory over fp32's: {_by_width(rows, 'memory_ratio')}. bf16 takes less, by more than "
        f"{100 * (1 - LESS):.2g} %, in {less} of {len(ratios)} cells; write-up 001 says that it does so consistently "
        f"({span(min(claimed), max(claimed))} at d_model {OF_SCRIPT}). Autocast halves activations alone and adds "
        f"copies of the weights.{_state(predicted)}"
    )
    return text, "confirmed" if less == len(ratios) else "contradicted"


def _state(predicted: pd.DataFrame) -> str:
    """What is fp32 under autocast too, for the widest model."""
    rows = main_device(predicted)
    rows = rows[rows["dtype"] == "bf16"]
    if rows.empty:
        return ""
    row = rows.loc[rows["d_model"].astype(int).idxmax()]
    held = float(row["parameters_gib"]) + float(row["state_gib"])
    return (
        f" Parameters and Adam state stay in fp32: {figure(held)} GiB of {figure(row['peak_gib'])} GiB at d_model "
        f"{row['d_model']}, target length {row['target_length']}."
    )


def loss(against: pd.DataFrame) -> str:
    """Final loss against fp32's, and the steps that the loss scaler skipped."""
    rows = _halves(against)
    parts = []
    for dtype in HALF:
        found = _numbers(rows[rows["dtype"] == dtype], "loss_percent")
        if len(found):
            worst = rows.loc[found.abs().idxmax()]
            parts.append(
                f"{dtype} within {figure(found.abs().max())} % of fp32's final loss (d_model {worst['d_model']}, "
                f"target length {worst['target_length']})"
            )
    if not parts:
        raise CannotTell("no final loss in fp16 or bf16 is a number")
    words = rows[rows["loss_percent"].map(lambda found: isinstance(found, str))]
    lost = f" No number is the loss of {len(words)} cells." if len(words) else ""
    skipped = _numbers(rows[rows["dtype"] == "fp16"], "skipped_steps")
    scaled = f" The loss scaler skipped {from_to(skipped, '{:.0f}'.format)} steps a cell." if len(skipped) else ""
    return (
        f"Over {len(rows)} cells: {'; '.join(parts)}.{lost}{scaled} The samples are random numbers: the loss says "
        "whether the arithmetic holds, nothing about learning."
    )


def widths(frame: pd.DataFrame) -> str:
    """The widths that the write-up has as failed, and what they take with d_model to match."""
    need(frame[frame["status"] == "ok"], 1, "cells")
    rows = main_device(frame[frame["status"].isin(["ok", "failed", "oom"])])
    wide = rows[rows["d_model"] > rows["d_model"].min()]
    need(wide[wide["status"] == "ok"], 1, "cells of a wider model")
    parts = [_width(width, group) for width, group in wide.groupby("d_model")]
    return (
        f"With d_model as wide as the features, {'; '.join(parts)}. Write-up 001 has widths 2048 and 4096 as failed: "
        "its model kept d_model 512, and its script prints every error as out of memory."
    )


def _width(width: Any, group: pd.DataFrame) -> str:
    done = group[group["status"] == "ok"]
    peaks = done["peak_gib"].astype(float)
    others = ", ".join(
        f"{count} {status}" for status, count in group["status"].value_counts().items() if status != "ok"
    )
    return (
        f"width {width} trains in {len(done)} of {len(group)} cells, peak {span(peaks.min(), peaks.max(), ' GiB')}"
        f"{f' ({others})' if others else ''}"
    )
