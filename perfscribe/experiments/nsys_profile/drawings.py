"""The picture of nsys_profile: one bar a cell, the parts of its forward pass."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from perfscribe.instruments.statistics import format_figure
from perfscribe.show import figures as f
from perfscribe.show.tables import Table

BUSY_COLOUR, WAITING_COLOUR, IDLE_COLOUR, END_COLOUR = "#0072B2", "#E69F00", "#56B4E9", "#D8D8D8"


def _floats(rows: pd.DataFrame, column: str) -> pd.Series:
    """The column's figures; 0 where a text says why there is none."""
    return pd.to_numeric(rows[column], errors="coerce").astype(float).fillna(0)


def _labels(rows: pd.DataFrame) -> list[str]:
    """Size and context of each row; the dtype where it is not that of most."""
    usual = rows["dtype"].mode().iloc[0]
    return [
        f"{row['size']} {row['seq_len']}" + ("" if row["dtype"] == usual else f" {row['dtype']}")
        for _, row in rows.iterrows()
    ]


def draw_forward(canvas: Any, table: Table) -> None:
    """One bar a cell: busy, waiting for a launch, other idle time, the ends; the host clock's time as a mark."""
    axes, rows = canvas.subplots(), table.ok
    if "fp32" in set(rows["dtype"]):  # the homework's; cells of another precision are not to be mixed with these
        rows = rows[rows["dtype"] == "fp32"]
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    busy, idle, ends = (_floats(rows, f"forward_{name}_ms") for name in ("busy", "idle", "edges"))
    percent = 100 / (busy + idle + ends)
    waiting = idle * percent * _floats(rows, "launch_bound_percent") / 100
    parts = [
        ("device busy", busy * percent, BUSY_COLOUR),
        ("idle, waiting for a launch", waiting, WAITING_COLOUR),
        ("idle between kernels otherwise", idle * percent - waiting, IDLE_COLOUR),
        ("before the first and after the last kernel", ends * percent, END_COLOUR),
    ]
    parts = [part for part in parts if part[1].max() > 0]
    places, bottom = range(len(rows)), pd.Series(0.0, index=rows.index)
    for _, heights, colour in parts:
        axes.bar(places, heights, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4)
        bottom = bottom + heights
    host = _floats(rows, "forward_ms") * percent
    mark = {"markersize": 3.5, "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.6}
    (clock,) = axes.plot(places, host, "D", label="host clock, without a profiler", **mark)
    top = 1.12 * max(100.0, host.max())
    for place, milliseconds in enumerate(_floats(rows, "forward_range_ms")):
        axes.text(place, top * 0.985, format_figure(milliseconds), ha="center", va="top", fontsize=5.5)
    axes.set_xticks(places, _labels(rows), rotation=90, fontsize=6)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, top)
    axes.set_ylabel("Share of forward's range (%)")
    handles = [*(Patch(color=colour, label=name) for name, _, colour in parts), clock]
    canvas.legend(handles=handles, fontsize=7, handlelength=1, loc="outside upper center", ncols=3)
