"""The figure of benchmarking_mixed_precision: speed-up over fp32 by model size."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.mixed_precision.rows import OTHERS
from perfscribe.show import figures as f

ABOVE = 1.08  # room above the highest point


def by_size(canvas: Any, table: pd.DataFrame) -> None:
    """A panel for forward and one for backward, a line a dtype; why a size has no point stands at its place."""
    panels = canvas.subplots(1, 2, sharey=True)
    highest = 1.0
    for axes, name in zip(panels, ("forward", "backward"), strict=True):
        rows = table[(table["pass_type"] == name) & (table["status"] == "ok")]
        highest = max([highest, *_draw_pass(axes, rows)])
        axes.set_title(name.capitalize())
        axes.set_xlabel("Model size")
    panels[0].set_ylim(0, highest * ABOVE)
    panels[0].set_ylabel("Speed-up over true fp32 (×)")


def _draw_pass(axes: Any, rows: pd.DataFrame) -> list[float]:
    """Draw one pass; returns the speed-ups drawn."""
    sizes = list(dict.fromkeys(rows["model_size"]))
    drawn: list[float] = []
    for number, dtype in enumerate(OTHERS):
        known = rows[pd.to_numeric(rows[f"{dtype}_speedup"], errors="coerce").notna()]
        if known.empty:
            continue
        at, speedups = [sizes.index(size) for size in known["model_size"]], known[f"{dtype}_speedup"].astype(float)
        style = {"color": f.COLOURS[number], "marker": f.MARKERS[number], "markersize": 5, "linewidth": 1.2}
        axes.plot(at, speedups, label=dtype.upper(), **style)
        drawn += list(speedups)
    if not drawn:
        f.no_data(axes, "no size has fp32 and another dtype")
        return drawn
    _say_what_is_missing(axes, rows, sizes)
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.legend()
    return drawn


def _say_what_is_missing(axes: Any, rows: pd.DataFrame, sizes: list[str]) -> None:
    for _, row in rows.iterrows():
        if isinstance(row["fp32_ms"], str):
            at = (sizes.index(row["model_size"]), 0.02)
            text = f"fp32: {row['fp32_ms']}"
            axes.annotate(text, at, xycoords=("data", "axes fraction"), ha="center", fontsize=7, color="#B00020")
