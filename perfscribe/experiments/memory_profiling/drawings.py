"""Figure of memory_profiling: bytes by kind over one pass, stacked."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.memory_profiling.rows import MODES, PHASES
from perfscribe.instruments.profiling.memory_timeline import (
    COPIES,
    GRADIENTS,
    OTHER,
    PARAMETERS,
    REST,
    SAVED,
    STATE,
    TABLES,
    TEMPORARY,
)
from perfscribe.show import figures as f
from perfscribe.show.tables import GIB, MIB, Table

# From the bottom: what stays first.
COLOURS = {
    REST: "#555555",
    OTHER: "#999999",
    TABLES: "#CCCCCC",
    PARAMETERS: "#0072B2",
    STATE: "#56B4E9",
    GRADIENTS: "#E69F00",
    COPIES: "#CC79A7",
    SAVED: "#009E73",
    TEMPORARY: "#D55E00",
}
LEAST_NAMED = 0.003  # thinner layers, as shares of a panel's height, are left out of the legend
# Not time: the host asks for memory long before a GPU gets there, so that whole phases would be a hair wide.
AXIS = "Allocations and frees, in order"
CAPTION = (
    "Bytes allocated during one pass, stacked by kind, over allocations and frees in their order: forward alone and a "
    "full training step at the longest context of the largest size. Dashed lines end the phases."
)
DRAWN = ("inference", "full_step")


def draw(canvas: Any, table: Table) -> None:
    """Forward alone beside a full step, on one scale."""
    cells = [_chosen(table, mode) for mode in DRAWN]
    panels = canvas.subplots(1, 2, sharey=True, width_ratios=(1, 2))
    scale = _Scale(cells)
    for axes, cell, mode in zip(panels, cells, DRAWN, strict=True):
        _panel(axes, cell, f"{MODES[mode]}{_setting(cell) if mode == DRAWN[-1] else ''}", scale)
    panels[0].set_ylabel(f"Allocated ({scale.name})")
    scale.name_kinds(canvas)


def _drawable(table: Table) -> pd.DataFrame:
    """The rows with a course, those whose pass was cut short included."""
    frame = table.frame
    return frame[frame["timeline"].map(lambda text: isinstance(text, str) and text.startswith("{"))]


def _chosen(table: Table, mode: str) -> pd.DataFrame:
    """The cell of a mode at the longest context of the size with most parameters, in the first dtype."""
    rows = _drawable(table)
    rows = rows[rows["mode"] == mode]
    if rows.empty:
        return rows
    size = max(rows["size"].unique(), key=lambda name: transformer_parameters(SIZES[name]))
    rows = rows[rows["size"] == size]
    return rows[rows["seq_len"] == rows["seq_len"].max()][:1]


def _setting(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return f": {row['size']}, context {row['seq_len']}, {row['dtype']}"


class _Scale:
    """One unit, one height and one legend for both panels."""

    def __init__(self, cells: list[pd.DataFrame]) -> None:
        courses = [json.loads(text) for cell in cells for text in cell["timeline"]]
        self.highest_bytes = max((self._highest(course) for course in courses), default=0)
        self.kinds = [kind for kind in COLOURS if any(kind in course["kinds"] for course in courses)]
        self.visible = {kind for course in courses for kind in self.kinds if self._is_visible(course, kind)}
        self.unit, self.name = (GIB, "GiB") if self.highest_bytes >= GIB / 10 else (MIB, "MiB")

    @staticmethod
    def _highest(course: dict[str, Any]) -> int:
        return int(max(map(sum, zip(*course["kinds"].values(), strict=True))) * course["unit_bytes"])

    def _is_visible(self, course: dict[str, Any], kind: str) -> bool:
        thickness_bytes = max(course["kinds"].get(kind, [0])) * course["unit_bytes"]
        return bool(thickness_bytes >= LEAST_NAMED * self.highest_bytes)

    def name_kinds(self, canvas: Any) -> None:
        """Name the kinds beside all panels."""
        names = [kind for kind in self.kinds[::-1] if kind in self.visible]  # as they are stacked
        if names:
            patches = [Patch(color=COLOURS[kind], label=kind) for kind in names]
            canvas.legend(handles=patches, loc="outside right upper", fontsize=7)


def _panel(axes: Any, rows: pd.DataFrame, title: str, scale: _Scale) -> None:
    """The course of the one cell of these rows, stacked."""
    axes.set_title(title, fontsize=8)
    if rows.empty:
        f.no_data(axes, "no such cell was measured")
        return
    row = rows.iloc[0]
    course = json.loads(row["timeline"])
    _stack(axes, course, scale)
    axes.set_xlim(course["change"][0], course["change"][-1])
    axes.set_ylim(0, 1.1 * scale.highest_bytes / scale.unit)
    axes.set_xlabel(AXIS)
    axes.grid(False)
    _mark_phases(axes, course, str(row["status"]))


def _stack(axes: Any, course: dict[str, Any], scale: _Scale) -> None:
    """The kinds on top of each other; drawn from the highest sum down, each to the ground, which keeps files small."""
    sums = [0] * len(course["change"])
    layers = []
    for kind in (kind for kind in scale.kinds if kind in course["kinds"]):
        sums = [below + size for below, size in zip(sums, course["kinds"][kind], strict=True)]
        layers.append((kind, sums))
    for kind, heights in reversed(layers):
        xs, ys = _steps(course["change"], heights)
        # an edge of the same colour, or a peak of one moment would be too thin to see
        axes.fill(xs, [y * course["unit_bytes"] / scale.unit for y in ys], color=COLOURS[kind], linewidth=0.6)


def _steps(moments: list[int], heights: list[int]) -> tuple[list[int], list[int]]:
    """Outline, down to zero at both ends, of heights that last from their moment to the next; level parts as one."""
    xs, ys = [moments[0]], [0]
    for moment, height in zip(moments, heights, strict=True):
        if height != ys[-1]:
            xs += [moment, moment]
            ys += [ys[-1], height]
    return [*xs, moments[-1], moments[-1]], [*ys, ys[-1], 0]


def _mark_phases(axes: Any, course: dict[str, Any], status: str) -> None:
    """A line where a phase ends, its name above it, and how the pass ended if not well."""
    limits = [0, *course["phase_end"]]
    for phase, first, last in zip(PHASES, limits[:-1], limits[1:], strict=False):
        axes.axvline(last, color="#000000", linewidth=0.8, linestyle="--", zorder=0)  # behind peaks at a phase's end
        style = {"ha": "center", "va": "top", "fontsize": 7, "bbox": {"color": "#FFFFFF", "pad": 0.5}}
        axes.annotate(phase, ((first + last) / 2, 0.99), xycoords=("data", "axes fraction"), **style)
    if status != "ok":
        axes.annotate(
            status.upper(), (0.99, 0.9), xycoords="axes fraction", ha="right", va="top", fontsize=7, color="#B00020"
        )
