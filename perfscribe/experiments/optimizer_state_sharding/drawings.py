"""Figures of optimizer_state_sharding: memory by kind, and what sharding does to times."""

from __future__ import annotations

import textwrap
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.experiments.optimizer_state_sharding.answers import setting
from perfscribe.experiments.optimizer_state_sharding.columns import kind_column
from perfscribe.experiments.optimizer_state_sharding.names import IMPLEMENTATIONS, KINDS, PEER, SHARDED, UNSHARDED
from perfscribe.experiments.optimizer_state_sharding.rows import MOMENT_NAMES, TIME_NAMES, keyed
from perfscribe.tables import GIB, MIB, Table

SHORT = {UNSHARDED: "unsharded", SHARDED: "ours", PEER: "torch's"}
TITLE_CHARACTERS = 20  # of a panel's title in a line
COLOURS = dict(zip(KINDS, ("#0072B2", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#999999"), strict=True))
CAPTION = (
    "Above: memory of the rank that holds most, by kind, at three moments of a training step; dashes are predictions. "
    "Bars in groups by number of processes: AdamW unsharded, sharded by our optimizer, sharded by torch's. Below: time "
    "with sharded optimizer state over time without, of whole steps and of the optimizer's step alone. Points are "
    "ratios of medians over turns, bars the bootstrap intervals over turns; the dashed line is the unsharded optimizer."
)


def memory(canvas: Any, kinds: Table, prediction: Table) -> None:
    """Stacked bars, a panel a moment."""
    panels = canvas.subplots(1, len(MOMENT_NAMES), sharey=True)
    if kinds.ok.empty:
        for axes in panels:
            f.no_data(axes, "no cell was measured")
        return
    rows, levels = setting(keyed(kinds.ok))
    predicted = prediction.ok.loc[rows.index]
    unit, name = (GIB, "GiB") if rows["sum_gib"].astype(float).max() >= 1 else (MIB, "MiB")
    for axes, (moment, title) in zip(panels, MOMENT_NAMES.items(), strict=True):
        chosen = rows["moment"] == moment
        _bars(axes, rows[chosen], predicted[chosen], GIB / unit)
        axes.set_title(textwrap.fill(title, TITLE_CHARACTERS), fontsize=8)
    panels[0].set_ylabel(f"Memory ({name})")
    canvas.suptitle(levels, fontsize=8, x=0.01, ha="left")
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right upper", fontsize=7)


def _bars(axes: Any, rows: pd.DataFrame, predicted: pd.DataFrame, scale: float) -> None:
    ticks: list[float] = []
    labels: list[str] = []
    at = 0.0
    for ranks, group in rows.groupby("world_size"):
        by_name = group.set_index("implementation")
        for implementation in (name for name in IMPLEMENTATIONS if name in by_name.index):
            row = by_name.loc[implementation]
            _bar(axes, at, row, scale, first=not ticks)
            dash = predicted.loc[group.index[list(by_name.index).index(implementation)]]
            height = float(dash["predicted_gib"]) * scale
            axes.plot([at - 0.45, at + 0.45], [height, height], color="black", linewidth=1, linestyle=(0, (2, 1)))
            ticks.append(at)
            labels.append(f"{SHORT[implementation]}, {ranks}")
            at += 1
        at += 0.7
    axes.set_xticks(ticks, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.grid(axis="x", visible=False)


def _bar(axes: Any, at: float, row: pd.Series, scale: float, first: bool) -> None:
    bottom = 0.0
    for kind, colour in COLOURS.items():
        height = float(row[kind_column(kind)]) * scale
        axes.bar(at, height, 0.8, bottom, color=colour, label=kind if first else None)
        bottom += height


def speed(canvas: Any, rows: pd.DataFrame) -> None:
    """Ratios with intervals, a panel for whole steps and one for the optimizer's step."""
    for axes, (timed, title) in zip(canvas.subplots(1, 2, sharey=False), TIME_NAMES.items(), strict=True):
        axes.set_title(title.capitalize())
        chosen = rows[rows["timed"] == timed] if len(rows) else rows
        if chosen.empty:
            f.no_data(axes, "no cell was measured")
            continue
        _ratios(axes, chosen)
    canvas.axes[0].set_ylabel("Sharded over unsharded (×)")


def _ratios(axes: Any, rows: pd.DataFrame) -> None:
    varying = f.varying(rows, ("world_size", "size", "seq_len", "batch", "dtype"))
    cells = list(dict.fromkeys(map(tuple, rows[varying].to_numpy().tolist())))
    for number, name in enumerate((SHARDED, PEER)):
        group = rows[rows["implementation"] == name]
        at = [cells.index(tuple(levels)) + 0.16 * (number - 0.5) for levels in group[varying].to_numpy().tolist()]
        ratios, low, high = (pd.to_numeric(group[column], errors="coerce") for column in ("ratio", "low", "high"))
        bars = [(ratios - low).clip(lower=0).to_numpy(float), (high - ratios).clip(lower=0).to_numpy(float)]
        style = {"color": f.COLOURS[number], "marker": f.MARKERS[number], "linestyle": "none"}
        axes.errorbar(at, ratios.to_numpy(float), yerr=bars, label=SHORT[name], markersize=4, capsize=2, **style)
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(cells)), [_words(varying, levels) for levels in cells], fontsize=7)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    axes.legend(fontsize=7)


def _words(names: list[str], levels: tuple[Any, ...]) -> str:
    shown = {"world_size": "{} ranks", "batch": "batch {}", "seq_len": "context {}"}
    return "\n".join(shown.get(name, "{}").format(level) for name, level in zip(names, levels, strict=True))
