"""How all_reduce is drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from perfscribe.show import figures as f

MOST_TICKS = 5
NAMES = {"gloo": "Gloo, CPUs", "nccl": "NCCL, GPUs"}


def by_size(canvas: Any, rows: pd.DataFrame) -> None:
    """Time over size, a line a number of processes, a panel a backend that was measured."""
    ok = rows[rows["status"] == "ok"].astype({"host_ms": float})
    backends = list(dict.fromkeys(ok["backend"]))
    if not backends:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    panels = canvas.subplots(1, len(backends), squeeze=False, sharey=True)[0]
    for axes, backend in zip(panels, backends, strict=True):
        of_backend = ok[ok["backend"] == backend]
        f.lines(axes, of_backend, "size_bytes", "host_ms", "world_size", _processes, "host_ms_iqr")
        _name_sizes(axes, of_backend)
        f.mark_statuses(axes, rows[rows["backend"] == backend], "size_bytes")
        axes.set_title(NAMES.get(backend, backend))
    panels[0].set_ylabel("All-reduce (ms)")


def _processes(count: Any) -> str:
    return f"{count} processes"


def _name_sizes(axes: Axes, rows: pd.DataFrame) -> None:
    """Name messages on the x axis, the largest first, as far as names stay apart."""
    named = dict(sorted(zip(rows["size_bytes"].astype(float), rows["message"], strict=True)))
    apart = (max(named) / min(named)) ** (1 / MOST_TICKS)
    chosen: list[float] = []
    for size in sorted(named, reverse=True):
        if not chosen or chosen[-1] / size >= apart:
            chosen.append(size)
    axes.set_xticks(chosen, [named[size] for size in chosen], fontsize=f.LABEL_POINTS)
    axes.minorticks_off()
    axes.set_xlabel("Message")
