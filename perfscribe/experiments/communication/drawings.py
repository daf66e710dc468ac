"""The pictures of communication."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd

from perfscribe import figures as f
from perfscribe.experiments.communication import rates, single
from perfscribe.experiments.communication import rows as r
from perfscribe.findings import is_number

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
    panels = canvas.subplots(1, len(TITLES), squeeze=False)[0]
    for axes, (placement, title) in zip(panels, TITLES.items(), strict=True):
        own = rows[rows["placement"] == placement]
        transfer, wait, places = _floats(own, "transfer_ms"), _floats(own, "wait_ms"), np.arange(len(own))
        axes.barh(places, transfer, color=TRANSFER, height=0.6, label="transfer")
        axes.barh(places, wait, left=transfer, color=WAIT, height=0.6, label="waiting for the other rank")
        tools = [r.TOOLS[tool].removeprefix("the ") for tool in own["tool"]]
        cells = own[["backend", "implementation", "rank"]].itertuples(index=False)
        labels = [f"{one[0]}, {one[1]}, {tool}, rank {one[2]}" for one, tool in zip(cells, tools, strict=True)]
        axes.set_yticks(places, labels if axes is panels[0] else [""] * len(places), fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        links = textwrap.fill(", ".join(dict.fromkeys(own["link"])), TITLE_CHARACTERS)
        axes.set_title(f"{title}\n{links}", fontsize=7.5)
        axes.set_xlabel("Communication (ms)", fontsize=8)
        axes.grid(axis="y", visible=False)
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, fontsize=7, loc="outside upper center", ncols=2)


def bandwidth(canvas: Any, rows: pd.DataFrame) -> None:
    """Rates over message size."""
    axes = canvas.subplots()
    axes.set_xlabel("Message (MB)")
    axes.set_ylabel("Each way (GB/s)")
    known = rows[rows["message_mb"].map(is_number)] if len(rows) else rows
    if known.empty:
        f.no_data(axes, "no rate was measured")
        return
    plain, trained = known[known["what"] == rates.ALONE], known[known["what"] != rates.ALONE]
    number = 0
    for (backend, link), own in plain.groupby(["backend", "link"], sort=False):
        own = own.sort_values("message_mb", key=lambda column: column.astype(float), kind="stable")
        style = {"color": f.COLOURS[number % len(f.COLOURS)], "marker": ".", "linewidth": 1}
        axes.plot(_floats(own, "message_mb"), _floats(own, "gb_per_s"), label=f"{backend} alone: {link}", **style)
        number += 1
    for marker, (_, row) in zip(f.MARKERS * len(trained), trained.iterrows(), strict=False):
        x, colour = float(row["message_mb"]), f.COLOURS[number % len(f.COLOURS)]
        y = [float(row["with_waiting_gb_per_s"]), float(row["gb_per_s"])]
        label = f"{row['backend']} {row['what']}, {row['placement']}"
        axes.plot([x, x], y, color=colour, linewidth=0.8)
        axes.plot([x], y[1:], color=colour, marker=marker, linestyle="none", label=label)
        axes.plot([x], y[:1], color=colour, marker=marker, fillstyle="none", linestyle="none")
        number += 1
    for rate in sorted({rate for rate in known["rated_gb_per_s"] if is_number(rate)}):
        axes.axhline(rate, color="#555555", linestyle="--", linewidth=0.9, label=f"rated: {rate:.3g} GB/s")
    axes.set_xscale("log")
    axes.set_yscale("log")
    canvas.legend(
        fontsize=6.5, loc="outside upper center", ncols=2, title="hollow: waiting counted", title_fontsize=6.5
    )


def states(canvas: Any, rows: pd.DataFrame) -> None:
    """A bar a state."""
    axes = canvas.subplots()
    axes.set_xlabel("Step (ms)")
    steps = rows[rows["state"] != single.WHOLE] if len(rows) else rows
    if steps.empty:
        f.no_data(axes, "no step was measured")
        return
    places = np.arange(len(steps))
    spread = np.nan_to_num(_floats(steps, "time_ms_iqr")) / 2
    axes.barh(places, _floats(steps, "time_ms"), xerr=spread, color=TRANSFER, height=0.6, capsize=2)
    several = steps["backend"].nunique() > 1
    labels = [f"{row['backend']}: {row['state']}" if several else row["state"] for _, row in steps.iterrows()]
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
