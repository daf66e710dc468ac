"""How the roofline is drawn: a colour and one ceiling a dtype, a marker a kind of work."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from perfscribe.experiments.roofline.rows import EAGER, FUSED, STEP
from perfscribe.show import figures as f

GB_PER_TB = 1000
MARGIN = 3.0  # between the points and the limits of an axis, as a factor
MARKERS = {STEP: "*", EAGER: "s", FUSED: "o"}
PREFERRED = ("measured", "sheet")  # where a ceiling is taken from


def draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Points of one device, CUDA before others, under the ceilings of their dtypes."""
    axes = canvas.subplots()
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    device = "cuda" if "cuda" in set(rows["device"]) else rows["device"].iloc[0]
    shown = rows[rows["device"] == device].astype({"intensity": float, "tflop_per_s": float})
    colours = dict(zip(dict.fromkeys(shown["dtype"]), f.COLOURS, strict=False))
    axes.set_xscale("log")
    axes.set_yscale("log")
    left, right = shown["intensity"].min() / MARGIN, shown["intensity"].max() * MARGIN
    handles = []
    for dtype, group in shown.groupby("dtype", sort=False):
        for work, marker in MARKERS.items():
            points = group[group["work"] == work]
            axes.plot(points["intensity"], points["tflop_per_s"], marker, color=colours[dtype], markersize=5, alpha=0.8)
        _ceiling(axes, group, left, right, colours[dtype])
        handles.append(Line2D([], [], color=colours[dtype], label=dtype))
    works = [work for work in MARKERS if work in set(shown["work"])]
    handles += [Line2D([], [], linestyle="", marker=MARKERS[work], color="#555555", label=work) for work in works]
    axes.set_xlim(left, right)
    axes.set_ylim(bottom=shown["tflop_per_s"].min() / MARGIN)
    axes.set_xlabel("FLOP/byte")
    axes.set_ylabel("TFLOP/s")
    axes.legend(handles=handles, fontsize=8, loc="lower right")


def _ceiling(axes: Any, rows: pd.DataFrame, left: float, right: float, colour: str) -> None:
    """The memory's slope up to the peak of a dtype, as far as either is known."""
    peak, slope = _known(rows, "peak_tflop_per_s"), _known(rows, "memory_gb_per_s")
    ridge = peak * GB_PER_TB / slope if peak is not None and slope is not None else left if slope is None else right
    xs = [left, min(max(ridge, left), right), right]
    rates = [[limit for limit in (peak, slope and x * slope / GB_PER_TB) if limit is not None] for x in xs]
    if all(rates):
        axes.plot(xs, [min(limits) for limits in rates], color=colour, linewidth=1)


def _known(rows: pd.DataFrame, column: str) -> float | None:
    """A ceiling as measured, else of the data sheet; None where neither is known."""
    for source in PREFERRED:
        numbers = pd.to_numeric(rows[f"{source}_{column}"], errors="coerce").dropna()
        if len(numbers):
            return float(numbers.iloc[0])
    return None
