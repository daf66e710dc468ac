"""How scaling over ranks is drawn: measured filled and solid, the model hollow and dashed, model only on grey."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes

from perfscribe import figures as f
from perfscribe.experiments.scaling_model.trainings import STRONG, WEAK
from perfscribe.scaling.reach import MEASURED, MODEL_ONLY, MOST_RANKS
from perfscribe.training_answers import numbers

NOTHING = "no training was measured on several numbers of ranks"
NO_MESSAGE = "no all-reduce was measured on several numbers of ranks"
TITLES = {WEAK: "Weak, same rows a rank", STRONG: "Strong, same batch"}
SHADE, GREY = "#000000", "#555555"
LONGEST_OF_TWO = 55  # letters of a training's name with which two stand side by side; the figure is no wider
LEAST_PERCENT = 1.0  # what lies below is no efficiency that anybody would plan with


def steps(canvas: Any, rows: pd.DataFrame) -> None:
    """A step over ranks, a colour a training."""
    axes = canvas.subplots()
    known = numbers(rows, "step_ms") if len(rows) else rows
    if known.empty:
        f.no_data(axes, NOTHING)
        return
    for number, (name, own) in enumerate(known.groupby("training", sort=False)):
        own = own.sort_values("ranks", kind="stable")
        _dashed(axes, own, "model_ms", number)
        _filled(axes, own[own["origin"] == MEASURED], "step_ms", number, f"{name}: {own['scaling'].iloc[0]}")
    _finish(axes, known, "Step (ms)")
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    columns = 2 if longest <= LONGEST_OF_TWO else 1
    canvas.legend(loc="outside upper center", fontsize=f.LABEL_POINTS - 1, ncols=columns)


def efficiencies(canvas: Any, rows: pd.DataFrame) -> None:
    """Both efficiencies by the model, in the colours of the steps; of measured steps filled."""
    panels = canvas.subplots(1, 2)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        axes.set_title(title)
        known = numbers(rows, f"{kind}_percent") if len(rows) else rows
        if known.empty:
            f.no_data(axes, NOTHING)
            continue
        for number, name in enumerate(dict.fromkeys(rows["training"])):
            own = known[known["training"] == name].sort_values("ranks", kind="stable")
            measured = own[(own["scaling"] == kind) & (own["origin"] == MEASURED)]
            off = measured["model_ms"].astype(float) / measured["step_ms"].astype(float)
            _dashed(axes, own, f"{kind}_percent", number)
            _filled(axes, measured.assign(measured=measured[f"{kind}_percent"] * off), "measured", number)
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
        _finish(axes, known, "Efficiency (%)" if kind == WEAK else "")
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels if len(rows) else ():
        axes.set_ylim(max(min(lows), LEAST_PERCENT), max(highs))


def messages(canvas: Any, rows: pd.DataFrame) -> None:
    """An all-reduce over ranks, a colour a message size; between ring and tree tinted."""
    axes = canvas.subplots()
    if rows.empty:
        f.no_data(axes, NO_MESSAGE)
        return
    for number, (size, own) in enumerate(rows.groupby("size_mb", sort=False)):
        own = own.sort_values("ranks", kind="stable")
        _dashed(axes, own, "model_ms", number)
        _filled(axes, own[own["origin"] == MEASURED], "time_ms", number, f"{size} MB")
        bounds = (own[name].astype(float) for name in ("ring_ms", "tree_ms"))
        colour = f.COLOURS[number % len(f.COLOURS)]
        axes.fill_between(own["ranks"].astype(float), *bounds, color=colour, alpha=0.15, linewidth=0)
    _finish(axes, rows, f"All-reduce, {rows['backend'].iloc[0]} (ms)")
    canvas.legend(loc="outside upper center", fontsize=f.LABEL_POINTS - 1, ncols=4)


def _filled(axes: Axes, rows: pd.DataFrame, y: str, number: int, label: str | None = None) -> None:
    colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
    at, values = rows["ranks"].astype(float), rows[y].astype(float)
    axes.plot(at, values, color=colour, marker=marker, markersize=5, linewidth=1.4, label=label, zorder=3)


def _dashed(axes: Axes, rows: pd.DataFrame, y: str, number: int) -> None:
    colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
    at, values = rows["ranks"].astype(float), rows[y].astype(float)
    style: dict[str, Any] = {
        "marker": marker,
        "markersize": 4,
        "markerfacecolor": "white",
        "linewidth": 0.9,
        "linestyle": "--",
    }
    axes.plot(at, values, color=colour, **style)


def _finish(axes: Axes, rows: pd.DataFrame, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / f.LEAST_RANGE, high * f.LEAST_RANGE)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
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
    axes.axvspan(begin, end, color=SHADE, alpha=0.07, linewidth=0)
    axes.set_xlim(right=end)
    place: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "va": "top",
        "fontsize": f.LABEL_POINTS,
        "color": GREY,
    }
    axes.text(begin * 1.1, 0.98, "model only", **place)
