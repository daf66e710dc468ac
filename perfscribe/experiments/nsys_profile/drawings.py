"""The pictures of nsys_profile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.experiments.nsys_profile.answers import floats
from perfscribe.experiments.nsys_profile.timeline import BINS
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

CELL = ["size", "seq_len", "dtype", "device"]
# One colour a family in every picture (Okabe and Ito); what no rule knows is grey.
COLOURS = {
    "gemm": "#0072B2",
    "elementwise": "#E69F00",
    "reduction": "#009E73",
    "softmax": "#CC79A7",
    "copy": "#56B4E9",
    "optimizer": "#D55E00",
    "communication": "#000000",
    "other": "#999999",
}
RANGE_COLOUR, STEP_COLOUR, END_COLOUR = "#555555", "#000000", "#D8D8D8"
RANGE_LANES = {"final_matmul": "range: final matmul", "softmax": "range: softmax", "scores": "range: scores"}
LEAST_LABELLED = 0.13  # of the axis: a narrower bar has no room for its name
BAR_WIDTH = 0.8
MOST_TIMELINES = 2


def colour(family: str) -> str:
    """The family's colour."""
    return COLOURS.get(family, COLOURS["other"])


def _boxes(
    axes: Any, spans: Iterable[tuple[float, float, float, float]], shade: str, edge: float = 0.0, many: bool = False
) -> None:
    """Boxes (left, width, bottom, height) of one colour; many of them become pixels, or an SVG would be too large."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, w, y, h in spans if h > 0]
    axes.add_collection(PolyCollection(corners, facecolors=shade, edgecolors="white", linewidths=edge, rasterized=many))


def _legend(canvas: Any, parts: Sequence[tuple[str, str]], **how: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=shade, label=name) for name, shade in parts]
    canvas.legend(handles=[*patches, *how.pop("more", [])], fontsize=7, handlelength=1, **how)


def _families_legend(canvas: Any, rows: pd.DataFrame, families: Sequence[str]) -> None:
    shown = [family for family in families if not rows.empty and floats(rows, f"{family}_percent").max() > 0]
    if shown:
        parts = [(family, colour(family)) for family in shown]
        _legend(canvas, parts, loc="outside upper center", ncols=len(shown))


# --- one bar a cell -------------------------------------------------------------------------------------------------


def _cell_labels(rows: pd.DataFrame) -> list[str]:
    """Size and context of each row; the dtype where it is not that of most."""
    usual = rows["dtype"].mode().iloc[0]
    return [
        f"{row['size']} {row['seq_len']}" + ("" if row["dtype"] == usual else f" {row['dtype']}")
        for _, row in rows.iterrows()
    ]


def _stack(axes: Any, rows: pd.DataFrame, parts: Sequence[tuple[str, pd.Series, str]]) -> None:
    """Bars of one row each, made of parts (name, heights, colour) on top of each other."""
    bottom = pd.Series(0.0, index=rows.index)
    for _, heights, shade in parts:
        spans = [(i - BAR_WIDTH / 2, BAR_WIDTH, b, h) for i, (b, h) in enumerate(zip(bottom, heights, strict=True))]
        _boxes(axes, spans, shade, edge=0.4)
        bottom = bottom + heights
    axes.set_xticks(range(len(rows)), _cell_labels(rows), rotation=90, fontsize=6)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.grid(axis="x", visible=False)


def draw_forward(canvas: Any, table: Table) -> None:
    """One bar a cell: busy, waiting for a launch, other idle time, the ends; the host clock's time as a mark."""
    axes, rows = canvas.subplots(), table.ok
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    busy, idle, ends = (floats(rows, f"forward_{name}_ms").fillna(0) for name in ("busy", "idle", "edges"))
    percent = 100 / (busy + idle + ends)
    idle = idle * percent
    waiting = idle * floats(rows, "launch_bound_percent").fillna(0) / 100
    parts = [
        ("device busy", busy * percent, COLOURS["gemm"]),
        ("idle, waiting for a launch", waiting, COLOURS["elementwise"]),
        ("idle between kernels otherwise", idle - waiting, COLOURS["copy"]),
        ("before the first and after the last kernel", ends * percent, END_COLOUR),
    ]
    parts = [part for part in parts if part[1].max() > 0]
    _stack(axes, rows, parts)
    host = floats(rows, "forward_ms") * percent
    axes.plot(range(len(rows)), host, "D", markersize=3.5, color="black", markeredgecolor="white", markeredgewidth=0.6)
    top = 1.12 * max(100.0, host.max())
    for place, milliseconds in enumerate(floats(rows, "forward_range_ms")):
        axes.text(place, top * 0.985, format_figure(milliseconds), ha="center", va="top", fontsize=5.5)
    axes.set_ylim(0, top)
    axes.set_ylabel("Share of forward's range (%)")
    mark = axes.plot([], [], "D", markersize=3.5, color="black", label="host clock, without a profiler")
    shades = [(name, shade) for name, _, shade in parts]
    _legend(canvas, shades, more=mark, loc="outside upper center", ncols=3)


def draw_families(canvas: Any, table: Table, families: Sequence[str], passes: Sequence[str]) -> None:
    """One panel a pass, one bar a cell, made of the families' shares."""
    for axes, name in zip(canvas.subplots(len(passes), 1, sharex=True, squeeze=False)[:, 0], passes, strict=True):
        rows = table.ok[table.ok["pass"] == name]
        if rows.empty:
            f.no_data(axes, "no cell was measured")
            continue
        _stack(axes, rows, [(family, floats(rows, f"{family}_percent"), colour(family)) for family in families])
        axes.set_ylabel(f"{name.capitalize()} (%)")
        axes.set_ylim(0, 100)
    _families_legend(canvas, table.ok, families)


# --- the timeline of a step -----------------------------------------------------------------------------------------


def draw_timeline(canvas: Any, spans: Table, bins: Table, families: Sequence[str]) -> None:
    """One column a cell: its phases, its device time by family, and one layer of its forward pass exactly."""
    cells = list(bins.ok.groupby(CELL, sort=False))
    if not cells:
        f.no_data(canvas.subplots(), "no timeline was kept")
        return
    shown = [cells[0], cells[-1]][: min(MOST_TIMELINES, len(cells))]
    panels = canvas.subplots(3, len(shown), squeeze=False, height_ratios=[0.45, 1.5, 1.7])
    lanes = [family for family in COLOURS if family in set(spans.ok["family"])]
    for column, (key, own_bins) in enumerate(shown):
        own = spans.ok[(spans.ok[CELL] == pd.Series(key, index=CELL)).all(axis=1)]
        size, seq_len, dtype, _ = key
        panels[0][column].set_title(f"{size}, context {seq_len}, {dtype}", fontsize=9)
        whole_ms = _draw_phases(panels[0][column], own[own["lane"] == "phase"])
        _draw_bins(panels[1][column], own_bins, families, whole_ms)
        _draw_layer(panels[2][column], own[own["lane"] != "phase"], lanes)
    for row in panels:
        for axes in row[1:]:
            axes.tick_params(labelleft=False)
    panels[1][0].set_ylabel("Device busy (%)", fontsize=8)
    _families_legend(canvas, bins.ok, families)


def _spans(rows: pd.DataFrame, lane: float, unit: float = 1.0, begin_ms: float = 0.0) -> list[Any]:
    starts, widths = (floats(rows, "start_ms") - begin_ms) * unit, floats(rows, "duration_ms") * unit
    return [(start, width, lane - 0.4, 0.8) for start, width in zip(starts, widths, strict=True)]


def _draw_phases(axes: Any, rows: pd.DataFrame) -> float:
    """The ranges of a step, with their names where there is room; the step's milliseconds."""
    whole_ms = float(floats(rows, "duration_ms").max())
    for _, row in rows.iterrows():
        lane, shade = (1, STEP_COLOUR) if row["name"] == "step" else (0, RANGE_COLOUR)
        _boxes(axes, _spans(row.to_frame().T, lane), shade, edge=0.8)
        if float(row["duration_ms"]) >= LEAST_LABELLED * whole_ms:
            middle = float(row["start_ms"]) + float(row["duration_ms"]) / 2
            axes.text(middle, lane, row["name"], ha="center", va="center", fontsize=6.5, color="white", clip_on=True)
    axes.set_yticks([0, 1], ["phases", "step"], fontsize=7)
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlim(0, whole_ms)
    axes.tick_params(labelbottom=False)
    axes.grid(visible=False)
    return whole_ms


def _draw_bins(axes: Any, rows: pd.DataFrame, families: Sequence[str], whole_ms: float) -> None:
    starts, width = floats(rows, "start_ms"), whole_ms / BINS
    bottom = pd.Series(0.0, index=rows.index)
    for family in families:
        share = floats(rows, f"{family}_percent")
        spans = [(x, width, b, h) for x, b, h in zip(starts, bottom, share, strict=True)]
        _boxes(axes, spans, colour(family), many=True)
        bottom = bottom + share
    axes.set_xlim(0, whole_ms)
    axes.set_ylim(0, 100)
    axes.set_xlabel("Time in the step (ms)", fontsize=8)


def _draw_layer(axes: Any, rows: pd.DataFrame, lanes: Sequence[str]) -> None:
    """Kernels of one layer, one lane a family, and above them where the kernels of each attention range ran."""
    if rows.empty:
        f.no_data(axes, "no layer was kept")
        return
    kernels, ranges = rows[rows["lane"] == "kernel"], rows[rows["lane"] == "range"]
    begin_ms = floats(rows, "start_ms").min()
    whole_ms = (floats(rows, "start_ms") + floats(rows, "duration_ms")).max() - begin_ms
    for lane, family in enumerate(lanes):
        _boxes(axes, _spans(kernels[kernels["family"] == family], lane, 1e3, begin_ms), colour(family))
    for lane, name in enumerate(RANGE_LANES, start=len(lanes)):
        _boxes(axes, _spans(ranges[ranges["name"] == name], lane, 1e3, begin_ms), RANGE_COLOUR)
    labels = [*lanes, *RANGE_LANES.values()]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xlim(0, whole_ms * 1e3)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("One layer of forward, on the device (µs)", fontsize=8)
    axes.grid(axis="y", visible=False)
