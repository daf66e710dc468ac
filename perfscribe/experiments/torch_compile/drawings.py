"""The figures of torch_compile: speed-ups by compiling, with their intervals over turns."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib import ticker

from perfscribe.show import figures as f

STAGGER = 0.06  # of the distance between two sizes, so that bars do not hide each other


def attention(canvas: Any, table: pd.DataFrame) -> None:
    """Forward and backward over sequence length, a line a width."""
    rows = table[table["status"] == "ok"]
    by = f.varying(rows, ("head_dim", "backend", "implementation", "dtype", "device"))
    for axes, phase in zip(canvas.subplots(1, 2, sharey=True), ("forward", "backward"), strict=True):
        axes.set_title(phase.capitalize())
        axes.set_xlabel("Sequence length")
        if rows.empty:
            f.no_data(axes, "no cell was measured")
            continue
        for number, (level, group) in enumerate(rows.groupby(by, sort=False)):
            group = group.sort_values("seq_len", kind="stable")
            _points(axes, number, group["seq_len"].astype(float), group, phase, f"d {_words(level)}")
        axes.set_xscale("log", base=2)
        f.power_of_two_ticks(axes, sorted(set(rows["seq_len"].astype(float))))
        _finish(axes)
        f.mark_statuses(axes, table, "seq_len")
    canvas.axes[0].set_ylabel("Eager over compiled (×)")


def models(canvas: Any, rows: pd.DataFrame) -> None:
    """Forward and full step by model size, a line a context, dtype and implementation."""
    sizes = list(dict.fromkeys(rows["size"]))
    by = f.varying(rows, ("seq_len", "backend", "implementation", "dtype", "device"))
    panels = canvas.subplots(1, 2, sharey=True)
    for axes, phase, title in zip(panels, ("forward", "full_step"), ("Forward", "Full step"), strict=True):
        axes.set_title(title)
        axes.set_xlabel("Model size")
        if rows.empty:
            f.no_data(axes, "no cell was measured")
            continue
        groups = list(rows.groupby(by, sort=False))
        for number, (level, group) in enumerate(groups):
            shift = STAGGER * (number - (len(groups) - 1) / 2)
            at = pd.Series([sizes.index(size) + shift for size in group["size"]], dtype=float)
            _points(axes, number, at, group, phase, f"context {_words(level)}")
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        _finish(axes)
    panels[0].set_ylabel("Eager over compiled (×)")


def _words(level: Any) -> str:
    return " ".join(map(str, level))


def _points(axes: Any, number: int, at: pd.Series, group: pd.DataFrame, phase: str, label: str) -> None:
    """Speed-ups of a phase with their intervals; without bars where there were too few turns."""
    speedups, low, high = (pd.to_numeric(group[f"{phase}_{n}"], errors="coerce") for n in ("speedup", "low", "high"))
    bars = [(speedups - low).clip(lower=0).to_numpy(float), (high - speedups).clip(lower=0).to_numpy(float)]
    style = {"color": f.COLOURS[number % len(f.COLOURS)], "marker": f.MARKERS[number % len(f.MARKERS)]}
    axes.errorbar(at.to_numpy(), speedups.to_numpy(float), yerr=bars, label=label, **style, **LINE)


LINE = {"markersize": 4, "linewidth": 1, "capsize": 2}


def _finish(axes: Any) -> None:
    """Eager's own line, a logarithmic axis on which half and double lie equally far from it, and the legend."""
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.legend(fontsize=7)
