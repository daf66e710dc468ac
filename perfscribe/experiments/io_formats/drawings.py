"""How the figures of the I/O formats are drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.epoch_columns import main_device
from perfscribe.instruments.statistics import format_figure
from perfscribe.show import figures as f

PARTS = {"constructor_s": "constructor", "loader_wait_s": "loader wait", "copy_s": "copy", "compute_s": "compute"}


def parts(canvas: Any, table: pd.DataFrame) -> None:
    """A bar a row, as shares of the sum of constructor and one epoch; sum and loader wait in seconds at its end."""
    axes, rows = canvas.subplots(), main_device(table)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    times = rows[list(PARTS)].astype(float)
    shares = 100 * times.div(times.sum(axis=1), axis=0)
    start = pd.Series(0.0, index=rows.index)
    places = range(len(rows))
    for colour, (column, label) in zip(f.COLOURS, PARTS.items(), strict=False):
        axes.barh(places, shares[column], left=start, color=colour, label=label, height=0.7)
        start = start + shares[column]
    for place, total, wait in zip(places, times.sum(axis=1), times["loader_wait_s"], strict=True):
        seconds = f"{format_figure(total)} s (wait {format_figure(wait, digits=2)})"
        axes.annotate(seconds, (100, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6.5)
    axes.set_axisbelow(True)
    _name_rows(axes, [f"{row['format']}, {row['cache']}" for _, row in rows.iterrows()])
    axes.set_xlim(0, 100)
    axes.set_xlabel("Share of constructor and one epoch (%)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(PARTS))


def reads(canvas: Any, table: pd.DataFrame) -> None:
    """A line a format with a dot for warm and one for cold, each labelled with its median."""
    axes, rows = canvas.subplots(), main_device(table)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    names = list(dict.fromkeys(rows["format"]))
    for colour, (cache, filled) in zip(f.COLOURS, (("warm", True), ("cold", False)), strict=False):
        for _, row in rows[rows["cache"] == cache].iterrows():
            _dot(axes, row, names.index(row["format"]), colour, filled)
    _name_rows(axes, names)
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.12)
    axes.set_xlabel("Time to read one sample (ms)")


def _dot(axes: Any, row: Any, place: int, colour: str, filled: bool) -> None:
    """Median and quartiles; warm is labelled above its dot, cold below, so that close ones stay readable."""
    median_ms, low, high = (float(row[name]) for name in ("read_ms", "read_ms_q1", "read_ms_q3"))
    axes.errorbar(
        [median_ms],
        [place],
        xerr=[[median_ms - low], [high - median_ms]],
        fmt="o" if filled else "s",
        markersize=6,
        capsize=2,
        color=colour,
        markerfacecolor=colour if filled else "white",
    )
    axes.annotate(
        f"{row['cache']} {format_figure(median_ms, high - low)}",
        (median_ms, place),
        xytext=(0, 6 if filled else -6),
        textcoords="offset points",
        ha="center",
        va="bottom" if filled else "top",
        fontsize=7,
        color=colour,
    )


def _name_rows(axes: Any, names: list[str]) -> None:
    """Rows from top to bottom, as in the table."""
    axes.set_yticks(range(len(names)), names, fontsize=f.LABEL_POINTS)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
