"""Figures of optimizer_state_sharding: memory by kind, and times."""

from __future__ import annotations

import textwrap
from typing import Any

import pandas as pd

from perfscribe.experiments.optimizer_state_sharding import measure as m
from perfscribe.show import figures as f
from perfscribe.show.tables import GIB

NAMES = {m.UNSHARDED: "AdamW, unsharded", m.SHARDED: "sharded (ours)", m.PEER: "sharded (torch's ZeRO optimizer)"}
MOMENT_NAMES = {
    m.PASSES: "peak of forward, backward, averaging",
    m.BEFORE_STEP: "directly before the step",
    m.STEP: "peak of the optimizer step",
}
SETTING = ["size", "seq_len", "batch", "dtype", "backend"]
SHORT = {NAMES[m.UNSHARDED]: "unsharded", NAMES[m.SHARDED]: "ours", NAMES[m.PEER]: "torch's"}
TITLE_CHARACTERS = 20  # of a panel's title in a line
COLOURS = dict(zip(m.KINDS, ("#0072B2", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#999999"), strict=True))
TIMED = {"step_ms": "Whole step", "optimizer_ms": "Optimizer step alone"}


def kind_column(kind: str) -> str:
    """Name of a kind's column."""
    return f"{kind.replace(', ', '_').replace(' ', '_')}_gib"


def _of_one_setting(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of the homework's FP32 where there are any, and of the setting that has most, and its name."""
    _, chosen = max(rows.groupby(SETTING, sort=False), key=lambda group: (group[0][3] == "fp32", len(group[1])))
    size, context, batch, dtype, backend = (chosen.iloc[0][name] for name in SETTING)
    named = f"size {size}, context {context}, global batch {batch}, {dtype}, {backend}"
    return chosen.sort_values("world_size", kind="stable"), named


def _places(rows: pd.DataFrame) -> list[float]:
    """Where bars stand: in groups by number of processes."""
    ranks = list(dict.fromkeys(rows["world_size"]))
    return [place + 0.7 * ranks.index(rank) for place, rank in enumerate(rows["world_size"])]


def _name_bars(axes: Any, rows: pd.DataFrame, at: list[float]) -> None:
    labels = [f"{SHORT[row['implementation']]}, {row['world_size']}" for _, row in rows.iterrows()]
    axes.set_xticks(at, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.grid(axis="x", visible=False)


def memory(canvas: Any, rows: pd.DataFrame) -> None:
    """Stacked bars, a panel a moment."""
    panels = canvas.subplots(1, len(MOMENT_NAMES), sharey=True)
    rows, setting = _of_one_setting(rows)
    unit, name = (1e9, "GB") if rows["sum_gib"].astype(float).max() >= 1 else (1e6, "MB")
    for axes, moment in zip(panels, MOMENT_NAMES.values(), strict=True):
        chosen = rows[rows["moment"] == moment]
        at, bottom = _places(chosen), pd.Series(0.0, chosen.index)
        for kind, colour in COLOURS.items():
            height = chosen[kind_column(kind)].astype(float) * GIB / unit
            axes.bar(at, height, 0.8, bottom, color=colour, label=kind)
            bottom += height
        _name_bars(axes, chosen, at)
        axes.set_title(textwrap.fill(moment, TITLE_CHARACTERS), fontsize=8)
    panels[0].set_ylabel(f"Memory ({name})")
    canvas.suptitle(setting, fontsize=8, x=0.01, ha="left")
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)


def times(canvas: Any, rows: pd.DataFrame) -> None:
    """Medians with interquartile ranges, a panel for whole steps and one for the optimizer's step."""
    rows, _ = _of_one_setting(rows)
    at = _places(rows)
    for axes, (column, title) in zip(canvas.subplots(1, len(TIMED)), TIMED.items(), strict=True):
        spread = pd.to_numeric(rows[f"{column}_iqr"], errors="coerce") / 2
        axes.bar(at, rows[column].astype(float), 0.8, yerr=spread, color=f.COLOURS[1], capsize=2)
        _name_bars(axes, rows, at)
        axes.set_title(title)
        axes.set_ylabel("Time (ms)")
