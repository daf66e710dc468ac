"""How bindings are drawn: cores of each rank, over those nearest to its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from perfscribe import figures as f
from perfscribe.parallel import binding

COLOUR_OF = {binding.NEAR: f.COLOURS[2], binding.PARTLY: f.COLOURS[4], binding.FAR: f.COLOURS[1]}


def _cores(text: str) -> tuple[int, ...]:
    return binding.parse_cpu_bind(f"list:{text}")[0]


def _runs(cores: Sequence[int]) -> list[tuple[float, float]]:
    """Left edge and width of each run of neighbouring cores: a bar a core takes seconds to draw on a large host."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return [(run[0] - 0.5, float(len(run))) for run in runs]


def bindings(canvas: Any, rows: pd.DataFrame) -> None:
    """A panel a binding, a line a rank: its nearest cores as a light bar, its own as marks."""
    panels = list(rows.groupby(["machine", "cpu_bind"], sort=False))
    if not panels:
        f.no_data(canvas.subplots(), "no binding was looked at")
        return
    grid = canvas.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, ((machine, asked), group) in zip(grid, panels, strict=True):
        for place, (_, row) in enumerate(group.iterrows()):
            _rank(axes, place, row)
        axes.set_yticks(range(len(group)), [f"rank {rank}" for rank in group["rank"]], fontsize=7)
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.set_title(f"{machine}: {asked}", fontsize=8, loc="left")
    axes.set_xlabel("Core")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [Line2D([], [], color=colour, marker="s", linestyle="", label=word) for word, colour in COLOUR_OF.items()]
    handles.append(Line2D([], [], color="#BBBBBB", linewidth=6, label="nearest to the rank's GPU"))
    canvas.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=7)


def _rank(axes: Any, place: int, row: Any) -> None:
    if row["gpu_cores"] != "no GPU":
        axes.broken_barh(_runs(_cores(row["gpu_cores"])), (place - 0.4, 0.8), color="#DDDDDD", zorder=1)
    granted = str(row["granted_mask"])
    text = binding.shown(binding.cores_of_mask(granted)) if granted.startswith("0x") else row["asked_cores"]
    colour = COLOUR_OF.get(row["nearness"], f.COLOURS[0])
    cores = _cores(text)
    axes.plot(cores, [place] * len(cores), linestyle="", marker="s", markersize=3, color=colour, zorder=2)
