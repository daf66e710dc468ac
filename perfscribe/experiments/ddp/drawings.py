"""The pictures of ddp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import ticker

from perfscribe import figures as f
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.ddp.sentences import CELL, same_cell
from perfscribe.parallel.bucket_model import overhead_s
from perfscribe.statistics import format_figure

COMPUTE, COMMUNICATION = f.COLOURS[0], f.COLOURS[1]
PHASE_COLOURS = {"forward": "#D8D8D8", "backward": "#9A9A9A", "communication": "#F4C7A1", "optimizer": "#C9D9E8"}
SHORT = {v.NAIVE: "naive", v.FLAT: "flat", v.OVERLAP: "overlap", v.BUCKETED: "buckets", v.TORCH: "torch DDP"}
IN_CORNER: dict[str, Any] = {"fontsize": 6, "ha": "left", "va": "top"}
MOST_PANELS = 4
MOST_TIMELINES = 2


def _cells(rows: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    return [] if rows.empty else list(rows.groupby(list(CELL), sort=False))


def _title(key: Any) -> str:
    size, seq_len, batch, world_size, backend, dtype = key
    return f"{size}, context {seq_len}, batch {batch}, {world_size} ranks, {backend}, {dtype}"


def _label(row: pd.Series) -> str:
    short = SHORT[str(row["implementation"])]
    return f"{short} {float(row['bucket_mb']):g} MB" if row["implementation"] == v.BUCKETED else short


def _floats(rows: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(pd.to_numeric(rows[name], errors="coerce"), dtype=float)


def steps(canvas: Any, rows: pd.DataFrame, without: pd.DataFrame) -> None:
    """A panel a cell, a bar an implementation: the step without communication, and what communication adds."""
    cells = _cells(rows)[:MOST_PANELS]
    if not cells:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    height = 1 if len(cells) <= 2 else 2
    panels = canvas.subplots(height, -(-len(cells) // height), squeeze=False).flatten()
    for axes, (key, own) in zip(panels, cells, strict=False):
        off = _floats(without.loc[own.index], "off_ms")
        exposed = _floats(own, "exposed_ms")
        places = np.arange(len(own))
        axes.barh(places, off, color=COMPUTE, height=0.7, label="without communication")
        axes.barh(places, exposed, left=off, color=COMMUNICATION, height=0.7, alpha=0.85, label="exposed communication")
        low, high = _floats(own, "exposed_low_ms"), _floats(own, "exposed_high_ms")
        bars = [np.nan_to_num(exposed - low).clip(0), np.nan_to_num(high - exposed).clip(0)]
        axes.errorbar(off + exposed, places, xerr=bars, fmt="none", ecolor="#333333", capsize=2, linewidth=0.9)
        axes.set_xlim(left=0)
        axes.set_yticks(places, [_label(row) for _, row in own.iterrows()], fontsize=7)
        axes.invert_yaxis()
        axes.set_title(_title(key), fontsize=7.5)
        axes.set_xlabel("Step (ms)", fontsize=8)
        axes.grid(axis="y", visible=False)
    for axes in panels[len(cells) :]:
        axes.remove()
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, fontsize=7, loc="outside upper center", ncols=2)


def timelines(canvas: Any, rows: pd.DataFrame, traced: pd.DataFrame) -> None:
    """A column a cell, a panel an implementation: compute and communication, the phases below.

    traced: the same steps in figures, as bars also cover the gaps between the spans that they join.
    """
    cells = _cells(rows)
    if not cells:
        f.no_data(canvas.subplots(), "no step was traced")
        return
    shown = [cells[0], cells[-1]][: min(MOST_TIMELINES, len(cells))]
    names = list(dict.fromkeys(_label(row) for _, own in shown for _, row in _heads(own).iterrows()))
    panels = canvas.subplots(len(names), len(shown), squeeze=False, sharex="col")
    for column, (key, own) in enumerate(shown):
        panels[0][column].set_title(_title(key), fontsize=7.5)
        labels = own.apply(_label, axis=1)
        for place, name in enumerate(names):
            panel = panels[place][column]
            _one_timeline(panel, own[labels == name], name if column == 0 else "")
            panel.text(0.01, 0.97, _computing(same_cell(traced, own), name), **IN_CORNER, transform=panel.transAxes)
        panels[-1][column].set_xlabel("Time in the step (ms)", fontsize=8)
        panels[-1][column].set_xlim(0, 1.03 * float(_floats(own, "step_ms").max()))
    _legend(canvas)


def _computing(traced: pd.DataFrame, name: str) -> str:
    """How much of a traced step the rank computes; nothing for a step that is not there."""
    found = [row for _, row in traced.iterrows() if _label(row) == name]
    if not found:
        return ""
    part, whole = (format_figure(float(found[0][f"traced_{what}_ms"])) for what in ("compute", "step"))
    return f"computing {part} of {whole} ms"


def _heads(rows: pd.DataFrame) -> pd.DataFrame:
    """One row an implementation."""
    return rows.drop_duplicates(["implementation", "bucket_mb"])


def _one_timeline(axes: Any, rows: pd.DataFrame, name: str) -> None:
    lanes = {"compute": (2, COMPUTE), "communication": (1, COMMUNICATION)}
    lanes |= {f"phase {phase}": (0, shade) for phase, shade in PHASE_COLOURS.items()}
    for lane, (height, shade) in lanes.items():
        own = rows[rows["lane"] == lane]
        bars = list(zip(_floats(own, "start_ms"), _floats(own, "duration_ms"), strict=True))
        axes.broken_barh(bars, (height - 0.4, 0.8), facecolors=shade, linewidth=0, rasterized=True)
    axes.set_yticks([0, 1, 2], ["phases", "comm.", "compute"], fontsize=6)
    axes.set_ylim(-0.6, 3.4)  # room for a line of text
    if len(rows):
        axes.axvline(float(rows["step_ms"].iloc[0]), color="#333333", linewidth=0.8)
    axes.set_ylabel(name, fontsize=7)
    axes.grid(visible=False)


def _legend(canvas: Any) -> None:
    from matplotlib.patches import Patch

    phases = {("wait for communication" if name == "communication" else name): c for name, c in PHASE_COLOURS.items()}
    shades = {"compute": COMPUTE, "communication": COMMUNICATION, **phases}
    patches = [Patch(color=shade, label=name) for name, shade in shades.items()]
    canvas.legend(handles=patches, fontsize=7, handlelength=1, loc="outside upper center", ncols=len(patches))


def buckets(canvas: Any, rows: pd.DataFrame) -> None:
    """Exposed communication over the number of buckets with the fitted model, a colour a cell."""
    axes = canvas.subplots()
    cells = _cells(rows)
    if not cells:
        f.no_data(axes, "no cell was measured")
        return
    for number, (key, own) in enumerate(cells):
        own = own.sort_values("bucket_count", key=lambda counts: counts.astype(float), kind="stable")
        colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
        exposed, low, high = (_floats(own, name) for name in ("exposed_ms", "exposed_low_ms", "exposed_high_ms"))
        bars = [np.nan_to_num(exposed - low).clip(0), np.nan_to_num(high - exposed).clip(0)]
        counts = _floats(own, "bucket_count")
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none", "capsize": 2}
        axes.errorbar(counts, exposed, yerr=bars, label=_title(key), **style)
        _curve(axes, own.iloc[0], counts, colour)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("Buckets in a step")
    axes.set_ylabel("Exposed communication (ms)")
    axes.axhline(0, color="#555555", linewidth=0.8)
    axes.legend(fontsize=7)


def _curve(axes: Any, row: pd.Series, counts: np.ndarray, colour: str) -> None:
    """The model between the fewest and the most buckets; none where nothing was fitted."""
    rates = pd.to_numeric(row[["bandwidth", "call_us"]], errors="coerce")
    if rates.isna().all():
        return
    bytes_per_s = float("inf") if pd.isna(rates["bandwidth"]) else float(rates["bandwidth"]) * 1e9
    call_s = 0.0 if pd.isna(rates["call_us"]) else float(rates["call_us"]) / 1e6
    at = np.geomspace(counts.min(), counts.max(), 100)
    total_bytes = float(row["gradient_mb"]) * 1e6
    model_ms = [1e3 * overhead_s(total_bytes, float(count), bytes_per_s, call_s) for count in at]
    axes.plot(at, model_ms, color=colour, linewidth=1)
