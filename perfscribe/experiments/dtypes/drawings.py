"""How the figure of dtypes is drawn."""

from __future__ import annotations

from typing import Any

from perfscribe.experiments.epoch_columns import main_device
from perfscribe.show import figures as f
from perfscribe.show.tables import Table

SPREADS = {"samples_per_s": "samples_per_s_spread"}


def panels(canvas: Any, table: Table, y: str, label: str) -> None:
    """One panel a width, y over target length, one line a dtype."""
    rows = main_device(table.ok)
    if rows.empty:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    of_device = table.frame[table.frame["device"] == rows["device"].iloc[0]]
    widths = sorted(set(rows["d_model"]))
    for axes, width in zip(canvas.subplots(1, len(widths), squeeze=False)[0], widths, strict=True):
        chosen = rows[rows["d_model"] == width]
        f.lines(axes, chosen, "target_length", y, "dtype", spread=SPREADS.get(y, ""))
        f.power_of_two_ticks(axes, sorted(set(chosen["target_length"].astype(float))))
        f.mark_statuses(axes, of_device[of_device["d_model"] == width], "target_length")
        axes.margins(x=0.25)
        axes.set_title(f"d_model {width}")
        axes.set_xlabel("Target length")
    canvas.axes[0].set_ylabel(label)
