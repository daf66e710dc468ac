"""How the figure of flash_benchmarking is drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.rows import ELSEWHERE
from perfscribe.show import figures as f

DTYPES = ("bf16", "fp32")
WIDTH = 64  # head dimension; where it was not measured, the largest
MOST_TICKS = 6
# One style an implementation in every panel; "tiled" and "triton" are ours on a CPU and on a GPU.
STYLES = {"eager": 0, "tiled": 1, "triton": 1, "sdpa_flash": 2, "sdpa_cudnn": 3, "triton_ieee": 4, "sdpa_efficient": 5}
STYLES |= {"sdpa_math": 6}


def times(canvas: Any, cells: pd.DataFrame) -> None:
    """Forward and backward together over length, a line an implementation, a panel a dtype."""
    ok = cells[(cells["status"] == "ok") & ~cells["implementation"].isin(ELSEWHERE)]
    if ok.empty:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    device = "cuda" if "cuda" in set(ok["device"]) else ok["device"].iloc[0]
    ok, every = ok[ok["device"] == device], cells[cells["device"] == device]
    width = WIDTH if WIDTH in set(ok["head_dim"]) else max(ok["head_dim"])
    ok, every = ok[ok["head_dim"] == width], every[every["head_dim"] == width]
    dtypes = [dtype for dtype in DTYPES if dtype in set(ok["dtype"])] or [ok["dtype"].iloc[0]]
    named: dict[str, Any] = {}
    panels = canvas.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        _panel(axes, ok[ok["dtype"] == dtype], named)
        f.mark_statuses(axes, every[(every["dtype"] == dtype) & ~every["implementation"].isin(ELSEWHERE)], "seq_len")
        axes.set_title(f"d = {width}, {dtype} on {device}")
        axes.set_xlabel("Sequence length")
    panels[0].set_ylabel("Forward and backward (ms)")
    shown = [name for name in STYLES if name in named]
    titles = [backends.named(name).title for name in shown]
    canvas.legend([named[name] for name in shown], titles, loc="outside upper center", ncols=3, fontsize=8)


def _panel(axes: Any, rows: pd.DataFrame, named: dict[str, Any]) -> None:
    """The lines of one dtype; keeps one of each implementation for the legend."""
    for name, group in rows.groupby("implementation", sort=False):
        group = group.sort_values("seq_len", kind="stable")
        bars = pd.to_numeric(group["both_ms_iqr"], errors="coerce") / 2
        style = {"color": f.COLOURS[STYLES[name]], "marker": f.MARKERS[STYLES[name]], "markersize": 4, "capsize": 2}
        xs, ys = group["seq_len"].astype(float), group["both_ms"].astype(float)
        named[name] = axes.errorbar(xs, ys, yerr=bars, linewidth=1.2, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    levels = sorted({float(length) for length in rows["seq_len"]})
    f.power_of_two_ticks(axes, levels if len(levels) <= MOST_TICKS else levels[::-2][::-1])
