"""The picture of communication."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd

from perfscribe.experiments.communication import rows as r
from perfscribe.show import figures as f

TRANSFER, WAIT = f.COLOURS[0], f.COLOURS[1]
TITLE_CHARACTERS = 42  # of a line above a panel
TITLES = {r.INTRA: "within a node (1 x 2)", r.INTER: "across nodes (2 x 1)"}


def _floats(rows: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(pd.to_numeric(rows[name], errors="coerce"), dtype=float)


def waiting(canvas: Any, rows: pd.DataFrame) -> None:
    """A panel a placement, a bar a rank."""
    if rows.empty:
        f.no_data(canvas.subplots(), "no placement was measured")
        return
    several = [name for name in ("backend", "implementation") if rows[name].nunique() > 1]
    panels = canvas.subplots(1, len(TITLES), squeeze=False)[0]
    for axes, (placement, title) in zip(panels, TITLES.items(), strict=True):
        own = rows[rows["placement"] == placement]
        transfer, wait, places = _floats(own, "transfer_ms"), _floats(own, "wait_ms"), np.arange(len(own))
        axes.barh(places, transfer, color=TRANSFER, height=0.6, label="transfer")
        axes.barh(places, wait, left=transfer, color=WAIT, height=0.6, label="waiting for the other rank")
        tools = [r.TOOLS[tool].removeprefix("the ") for tool in own["tool"]]
        cells = own[several].itertuples(index=False)
        labels = [", ".join([*one, tool, f"rank {n}"]) for one, tool, n in zip(cells, tools, own["rank"], strict=True)]
        axes.set_yticks(places, labels if axes is panels[0] else [""] * len(places), fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        links = textwrap.fill(", ".join(dict.fromkeys(own["link"])), TITLE_CHARACTERS)
        axes.set_title(f"{title}\n{links}", fontsize=7.5)
        axes.set_xlabel("Communication (ms)", fontsize=8)
        axes.grid(axis="y", visible=False)
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, fontsize=7, loc="outside upper center", ncols=2)
