"""How the figures of tensor_dims are drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.epoch_columns import main_device
from perfscribe.epoch_memory import GROUPS
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

GIB_IN_MIB = 1024
SHOWN_IN_GIB = 0.5  # peaks below it are drawn in MiB


def name(row: Any) -> str:
    """Width, dtype and samples of a row."""
    cast = row["weights"] != row["dtype"]
    return f"{row['d_model']}, {row['dtype']}{' autocast' if cast else ''}, {row['samples']}"


def _named_rows(axes: Any, rows: pd.DataFrame) -> None:
    """Rows from top to bottom, as in the table."""
    axes.set_yticks(range(len(rows)), [name(row) for _, row in rows.iterrows()])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)


def memory(canvas: Any, table: Table) -> None:
    """A stacked bar a row, and the measured peak."""
    axes, rows = canvas.subplots(), main_device(table.ok)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    measured = rows["peak_gib"].astype(float)
    scale, unit = (1, "GiB") if measured.max() >= SHOWN_IN_GIB else (GIB_IN_MIB, "MiB")
    start = pd.Series(0.0, index=rows.index)
    for colour, (column, (title, _)) in zip(f.COLOURS, GROUPS.items(), strict=False):
        part = scale * rows[column].astype(float)
        axes.barh(range(len(rows)), part, left=start, color=colour, label=title.rpartition(" (")[0], height=0.7)
        start = start + part
    axes.plot(scale * measured, range(len(rows)), "D", color="white", markeredgecolor="black", label="measured")
    for place, peak in enumerate(scale * measured):
        axes.annotate(
            format_figure(peak), (peak, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7
        )
    _named_rows(axes, rows)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Memory at the peak of a step ({unit})")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, fontsize=7)


def throughput(canvas: Any, table: Table) -> None:
    """A line a row from its slowest to its quickest epoch."""
    axes, rows = canvas.subplots(), main_device(table.ok)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    for place, (_, row) in enumerate(rows.iterrows()):
        low, high = float(row["lowest_per_s"]), float(row["highest_per_s"])
        axes.plot([low, high], [place, place], "o-", color=f.COLOURS[0], markersize=4)
        axes.annotate(
            format_figure(high), (high, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7
        )
    _named_rows(axes, rows)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel("Samples/s, slowest to quickest epoch")
