"""How a read's time over its bytes is drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import figures as f

SERIES = (("gzip", "inflated_kib", "gzip: inflated"), ("none", "read_kib", "no compression: read from the file"))


def reads(canvas: Any, rows: pd.DataFrame) -> None:
    """A point a file with its quartiles, named by its chunk; with gzip a line that only inflating would follow."""
    axes = canvas.subplots()
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    for number, (compression, size, label) in enumerate(SERIES):
        group = rows[rows["compression"] == compression]
        if group.empty:
            continue
        xs, ys = group[size].astype(float), group["read_ms"].astype(float)
        low, high = ys - group["read_ms_q1"].astype(float), group["read_ms_q3"].astype(float) - ys
        style = {"fmt": f.MARKERS[number], "color": f.COLOURS[number], "markersize": 5, "capsize": 2}
        axes.errorbar(xs, ys, yerr=[low, high], label=label, **style)
        _names(axes, group, size, f.COLOURS[number])
    _inflating(axes, rows[rows["compression"] == "gzip"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel("For one sample (KiB, counted)")
    axes.set_ylabel("A random sample (ms)")
    axes.legend(loc="upper left")


def _names(axes: Any, group: pd.DataFrame, size: str, colour: str) -> None:
    """Chunks of points on one size share a label, below them, clear of the line above and of a neighbour's label."""
    for x, points in group.groupby(group[size].astype(float)):
        slowest_first = points.assign(read_ms=points["read_ms"].astype(float)).sort_values(
            "read_ms", ascending=False, kind="stable"
        )
        names = ", ".join(str(chunk) for chunk in slowest_first["chunk"])
        bottom = float(points["read_ms_q1"].astype(float).min())
        axes.annotate(
            names,
            (float(str(x)), bottom),
            xytext=(6, -9 if len(points) == 1 else -17),
            textcoords="offset points",
            fontsize=f.LABEL_POINTS,
            color=colour,
        )


def _inflating(axes: Any, packed: pd.DataFrame) -> None:
    """What zlib alone takes for the same chunks."""
    if packed.empty:
        return
    ordered = packed.assign(chunk_kib=packed["chunk_kib"].astype(float)).sort_values("chunk_kib", kind="stable")
    times = ordered["inflate_ms"].astype(float)
    axes.plot(ordered["chunk_kib"], times, color="#555555", linewidth=1, linestyle="--", label="zlib alone")
