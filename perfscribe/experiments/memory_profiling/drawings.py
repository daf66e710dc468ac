"""Figures of memory_profiling: bytes by kind over one pass, stacked, and peaks over context."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from perfscribe import figures as f
from perfscribe.experiments.memory_profiling.answers import largest_size, longest, numbers
from perfscribe.experiments.memory_profiling.predictions import PHASES
from perfscribe.experiments.memory_profiling.rows import MODES
from perfscribe.profiling.memory_timeline import (
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
from perfscribe.tables import GIB, MIB, Table

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
STACKED = (
    "Bytes allocated during one pass, stacked by kind, over allocations and frees in their order; of each stretch of "
    "them the highest and the lowest moment are drawn. "
)
PASSES_CAPTION = (
    f"{STACKED}The longest context of the largest size. Above: forward alone, left under no_grad, right with the graph "
    "that backward needs, let go after the dashed line. Below: a full training step; dashed lines end its phases."
)
CONTEXTS_CAPTION = (
    f"{STACKED}Full training steps of the largest size: a column a context, a row a dtype; dashed lines end the phases."
)
PEAKS_CAPTION = "Peak memory of the largest size over context, one line a mode and dtype."


def forward(canvas: Any, table: Table) -> None:
    """Forward alone, without and with graph."""
    cells = [_chosen(table, mode) for mode in ("inference", "forward")]
    panels = canvas.subplots(1, 2, sharey=True)
    scale = _Scale(cells)
    for axes, cell, mode in zip(panels, cells, ("inference", "forward"), strict=True):
        _panel(axes, cell, MODES[mode], scale)
    canvas.suptitle(f"Forward{_setting(pd.concat(cells))}", fontsize=9)
    scale.finish(canvas, panels[:1])


def step(canvas: Any, table: Table) -> None:
    """One full step."""
    cell = _chosen(table, "full_step")
    axes = canvas.subplots()
    scale = _Scale([cell])
    _panel(axes, cell, f"{MODES['full_step']}{_setting(cell)}", scale)
    scale.finish(canvas, [axes])


def contexts(canvas: Any, table: Table) -> None:
    """Full steps over contexts and dtypes."""
    rows = _drawable(table)
    rows = rows[rows["mode"] == "full_step"]
    rows = largest_size(rows) if len(rows) else rows
    lengths, dtypes = sorted(set(rows["seq_len"])) or [""], list(dict.fromkeys(rows["dtype"])) or [""]
    panels = canvas.subplots(len(dtypes), len(lengths), sharey=True, squeeze=False)
    scale = _Scale([rows])
    for line, dtype in zip(panels, dtypes, strict=True):
        for axes, length in zip(line, lengths, strict=True):
            cell = rows[(rows["seq_len"] == length) & (rows["dtype"] == dtype)]
            _panel(axes, cell, f"Context {length}, {dtype}", scale, phases_named=False)
            axes.tick_params(axis="x", labelsize=7)
    canvas.suptitle(f"{MODES['full_step']}{', ' + str(rows['size'].iloc[0]) if len(rows) else ''}", fontsize=9)
    scale.finish(canvas, panels[:, 0])


def peaks(canvas: Any, table: Table) -> None:
    """Peaks over context."""
    axes = canvas.subplots()
    rows = table.ok
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    rows = largest_size(rows)
    parts = []
    for mode, name in MODES.items():
        known = numbers(rows, f"{mode}_gib")
        line = rows.loc[known.index, ["seq_len", "dtype"]]
        parts.append(line.assign(peak_gib=known, mode=name))
    f.lines(axes, pd.concat(parts), "seq_len", "peak_gib", ["mode", "dtype"], lambda levels: ", ".join(levels))
    f.power_of_two_ticks(axes, sorted(set(rows["seq_len"].astype(float))))
    axes.set_xlabel(f"Context length, size {rows['size'].iloc[0]}")
    axes.set_ylabel("Peak memory (GiB)")


def _drawable(table: Table) -> pd.DataFrame:
    """The rows with a course, those whose pass was cut short included."""
    frame = table.frame
    return frame[frame["timeline"].map(lambda text: isinstance(text, str) and text.startswith("{"))]


def _chosen(table: Table, mode: str) -> pd.DataFrame:
    """The cell of a mode at the longest context of the largest size, in the first dtype."""
    rows = _drawable(table)
    rows = rows[rows["mode"] == mode]
    return longest(largest_size(rows))[:1] if len(rows) else rows


def _setting(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return f": {row['size']}, context {row['seq_len']}, {row['dtype']}"


class _Scale:
    """One unit, one height and one legend for all panels of a figure."""

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

    def finish(self, canvas: Any, left: Any) -> None:
        """Label the panels at the left, and name the kinds beside all."""
        for axes in left:
            axes.set_ylabel(f"Allocated ({self.name})")
        names = [kind for kind in self.kinds[::-1] if kind in self.visible]  # as they are stacked
        if names:
            patches = [Patch(color=COLOURS[kind], label=kind) for kind in names]
            canvas.legend(handles=patches, loc="outside right upper", fontsize=7)


def _panel(axes: Any, rows: pd.DataFrame, title: str, scale: _Scale, phases_named: bool = True) -> None:
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
    axes.set_xlabel(AXIS if phases_named else "")
    axes.grid(False)
    _mark_phases(axes, course, str(row["status"]), phases_named)


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


def _mark_phases(axes: Any, course: dict[str, Any], status: str, named: bool) -> None:
    """A line where a phase ends, its name above it, and how the pass ended if not well."""
    limits = [0, *course["phase_end"]]
    for phase, first, last in zip(PHASES, limits[:-1], limits[1:], strict=False):
        axes.axvline(last, color="#000000", linewidth=0.8, linestyle="--", zorder=0)  # behind peaks at a phase's end
        if named:
            at = ((first + last) / 2, 0.99)
            axes.annotate(phase, at, xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=7)
    if status != "ok":
        axes.annotate(
            status.upper(), (0.99, 0.9), xycoords="axes fraction", ha="right", va="top", fontsize=7, color="#B00020"
        )
