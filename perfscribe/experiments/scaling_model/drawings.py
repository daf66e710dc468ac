"""How scaling over ranks is drawn: measured filled and solid, the model hollow and dashed, model only on grey."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from perfscribe.experiments.multi_gpu.drawings import numbers, plain_log
from perfscribe.experiments.scaling_model.formulas import MEASURED, MODEL_ONLY, MOST_RANKS
from perfscribe.experiments.scaling_model.trainings import STRONG, WEAK
from perfscribe.show import figures as f

NOTHING = "not measured on several numbers of ranks"
TITLES = {WEAK: "Weak, same rows a rank", STRONG: "Strong, same batch"}
GREY = "#555555"
LONGEST_OF_TWO = 55  # letters of a training's name with which two stand side by side; the figure is no wider
LEAST_PERCENT = 1.0  # what lies below is no efficiency that anybody would plan with
FILLED: dict[str, Any] = {"markersize": 5, "linewidth": 1.4, "zorder": 3}
HOLLOW: dict[str, Any] = {"markersize": 4, "linewidth": 0.9, "linestyle": "--", "markerfacecolor": "white"}


def steps(canvas: Any, rows: pd.DataFrame) -> None:
    """A step over ranks, a colour a training."""
    axes = canvas.subplots()
    known = numbers(rows, "step_ms")
    if known.empty:
        f.no_data(axes, NOTHING)
        return
    for number, (name, own) in enumerate(known.groupby("training", sort=False)):
        own = own.sort_values("ranks", kind="stable")
        _line(axes, own, "model_ms", number, **HOLLOW)
        label = f"{name}: {own['scaling'].iloc[0]}"
        _line(axes, own[own["origin"] == MEASURED], "step_ms", number, label=label, **FILLED)
    _finish(axes, known, "Step (ms)")
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    columns = 2 if longest <= LONGEST_OF_TWO else 1
    canvas.legend(loc="outside upper center", fontsize=f.LABEL_POINTS - 1, ncols=columns)


def efficiencies(canvas: Any, rows: pd.DataFrame) -> None:
    """Both efficiencies by the model, in the colours of the steps; of measured steps filled."""
    panels = canvas.subplots(1, 2)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        axes.set_title(title)
        known = numbers(rows, f"{kind}_percent")
        if known.empty:
            f.no_data(axes, NOTHING)
            continue
        for number, name in enumerate(dict.fromkeys(rows["training"])):
            own = known[known["training"] == name].sort_values("ranks", kind="stable")
            measured = own[(own["scaling"] == kind) & (own["origin"] == MEASURED)]
            off = measured["model_ms"].astype(float) / measured["step_ms"].astype(float)
            _line(axes, own, f"{kind}_percent", number, **HOLLOW)
            _line(axes, measured.assign(measured=measured[f"{kind}_percent"] * off), "measured", number, **FILLED)
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
        _finish(axes, known, "Efficiency (%)" if kind == WEAK else "")
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels if len(rows) else ():
        axes.set_ylim(max(min(lows), LEAST_PERCENT), max(highs))


def _line(axes: Axes, rows: pd.DataFrame, y: str, number: int, **style: Any) -> None:
    colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
    axes.plot(rows["ranks"].astype(float), rows[y].astype(float), color=colour, marker=marker, **style)


def _finish(axes: Axes, rows: pd.DataFrame, title: str) -> None:
    axes.set_xscale("log", base=2)
    plain_log(axes)
    f.power_of_two_ticks(axes, [4.0**power for power in range(6)])
    axes.set_xlabel("Ranks")
    axes.set_ylabel(title)
    _shade(axes, rows)


def _shade(axes: Axes, rows: pd.DataFrame) -> None:
    """Grey from behind the last count that anything measured reaches."""
    reached = rows[rows["reach"] != MODEL_ONLY]
    last = float(reached["ranks"].max()) if len(reached) else 1.0
    if last >= MOST_RANKS:
        return
    begin, end = last * 2**0.5, MOST_RANKS * 2**0.5
    axes.axvspan(begin, end, color="#000000", alpha=0.07, linewidth=0)
    axes.set_xlim(right=end)
    place = axes.get_xaxis_transform()
    axes.text(begin * 1.1, 0.98, "model only", transform=place, va="top", fontsize=f.LABEL_POINTS, color=GREY)
