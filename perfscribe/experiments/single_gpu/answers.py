"""The sentences that answer the questions about training on one device."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from perfscribe.epoch_columns import main_device, span
from perfscribe.findings import CannotTell, need, shown
from perfscribe.statistics import format_figure as figure

LOADERS = {
    "per_sample": "with the homework's loader, which collates samples one by one",
    "per_batch": "with batches drawn at once from the host's memory",
    "on_device": "with batches drawn from samples that lie on the device",
}
PUBLISHED_S = "training_s_polaris-homework-001"


def _homework(rows: pd.DataFrame) -> Any:
    """The row of the deepest model with the homework's loader."""
    rows = main_device(rows)
    found = need(rows[rows["batches"] == "per_sample"], 1, "cells with the homework's loader")
    return found.loc[found["layers"].astype(int).idxmax()]


def time(rows: pd.DataFrame) -> str:
    """Total time, throughput and memory, beside the published time."""
    row = _homework(rows)
    epochs = int(row["epochs"])
    text = (
        f"{epochs} epochs of {row['samples']} samples in {row['dtype']}, {row['parameters']} parameters, take "
        f"{figure(row['training_s'])} s on {row['device']}: the first {figure(row['first_epoch_s'])} s, each later one "
        f"{shown(row, 'epoch_s')} s (median, IQR {_text(row['epoch_s_iqr'])} s, n = {row['epoch_s_n']}), which is "
        f"{shown(row, 'samples_per_s')} samples/s and {_step_ms(row)} ms a step. Memory peaks at "
        f"{figure(row['peak_gib'])} GiB."
    )
    published = row[PUBLISHED_S]
    if isinstance(published, str):
        return f"{text} It is not the homework's workload, so write-up 001's time is not compared."
    steps = epochs * int(row["steps_per_epoch"])
    text += (
        f" Write-up 001 took {figure(published)} s, {figure(published / row['training_s'])} times as long; that "
        f"is {figure(1e3 * published / steps)} ms for each of the {steps} steps if one device took them all."
    )
    return text if row["training_s"] <= published else f"{text} {_why_slower(rows, row, float(published))}"


def _why_slower(rows: pd.DataFrame, row: Any, published_s: float) -> str:
    """What the cells with other loaders say of the time that training takes longer here than it was published."""
    longer_s = float(row["training_s"]) - published_s
    alike = main_device(rows)
    others = alike[(alike["layers"] == row["layers"]) & (alike["batches"] != row["batches"])]
    text = f"Here it takes {figure(longer_s, _drift_s(row))} s more."
    if others.empty:
        return f"{text} No other way to draw batches was measured, so nothing here says why."
    quickest = others.loc[others["training_s"].astype(float).idxmin()]
    saved_s, drift_s = float(row["training_s"]) - float(quickest["training_s"]), _drift_s(row, quickest)
    if saved_s <= 0:
        return f"{text} No other way to draw batches is quicker, so it is not the loader."
    told = (
        f"{text} {LOADERS[quickest['batches']].capitalize()} the same training takes {figure(saved_s, drift_s)} s less"
    )
    if saved_s >= longer_s:
        return f"{told}: the loader, which waits for the host, costs more than the difference."
    return f"{told}; the other {figure(longer_s - saved_s, drift_s)} s, no cell here says why."


def _drift_s(*rows: Any) -> float:
    """How far trainings that ran once may be trusted: as far as epochs that stray by chance add up."""
    return sum(2 * _half(row["epoch_s_iqr"]) * math.sqrt(int(row["epochs"])) for row in rows)


def _step_ms(row: Any) -> str:
    return shown(row, "epoch_s", 1e3 / int(row["steps_per_epoch"]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else figure(float(value))


def first_epoch(rows: pd.DataFrame) -> str:
    """What the first epoch costs more than a later one."""
    rows = need(main_device(rows), 1, "cells")
    row = _homework(rows)
    extra = float(row["first_epoch_s"]) - float(row["epoch_s"])
    ratios = rows["first_epoch_s"].astype(float) / rows["epoch_s"].astype(float)
    if not isinstance(row["epoch_s_iqr"], str) and abs(extra) <= float(row["epoch_s_iqr"]):
        raise CannotTell(
            f"the first epoch takes {figure(row['first_epoch_s'])} s, a later one {shown(row, 'epoch_s')} s with an "
            f"IQR of {_text(row['epoch_s_iqr'])} s: no further apart than later epochs spread; over {len(rows)} cells "
            f"the first takes {span(ratios.min(), ratios.max())} times as long"
        )
    side = "more" if extra >= 0 else "less"
    return (
        f"The first epoch takes {figure(abs(extra))} s {side} than a later one, "
        f"{figure(100 * abs(extra) / float(row['training_s']))} % of the training time; over {len(rows)} cells it "
        f"takes {span(ratios.min(), ratios.max())} times as long. The homework has no warm-up, so its time holds "
        "this start, and a shorter run holds it in a larger share."
    )


def clock(rows: pd.DataFrame) -> str:
    """What the homework's clock leaves out, and what its loader costs."""
    row = _homework(rows)
    missed = float(row["training_s"]) - float(row["homework_clock_s"])
    return (
        f"The homework reads its clock when the last step is queued, without synchronising: here "
        f"{figure(row['homework_clock_s'])} s in place of {figure(row['training_s'])} s, {figure(1e3 * missed)} ms "
        f"less. {_loaders(rows, row)}"
    )


def _loaders(rows: pd.DataFrame, row: Any) -> str:
    alike = main_device(rows)
    alike = alike[alike["layers"] == row["layers"]]
    if len(alike) < 2:
        raise CannotTell("one way to draw batches was measured, two are needed")
    times = "; ".join(
        f"{shown(other, 'epoch_s')} s (IQR {_text(other['epoch_s_iqr'])} s) {LOADERS[other['batches']]}"
        for _, other in alike.iterrows()
    )
    quickest = alike.loc[alike["epoch_s"].astype(float).idxmin()]
    saved = float(row["epoch_s"]) - float(quickest["epoch_s"])
    if saved <= (_half(row["epoch_s_iqr"]) + _half(quickest["epoch_s_iqr"])):
        return f"An epoch takes {times}: no further apart than they spread."
    epoch_s, spread_s = float(row["epoch_s"]), 2 * (_half(row["epoch_s_iqr"]) + _half(quickest["epoch_s_iqr"]))
    share = figure(100 * saved / epoch_s, 100 * spread_s / epoch_s)
    return f"An epoch takes {times}. Of the homework's epoch {share} % is therefore the loader's and the copy's."


def _half(spread: Any) -> float:
    return 0.0 if isinstance(spread, str) else float(spread) / 2
