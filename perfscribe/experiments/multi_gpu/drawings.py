"""How the FSDP workshop's figures over ranks are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from perfscribe.show import figures as f


def numbers(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows whose column holds a number."""
    found = pd.to_numeric(rows[column], errors="coerce")
    return rows[found.notna()].assign(**{column: found.dropna().astype(float)})


def over_ranks(axes: Any, lines: Iterable[tuple[str, pd.DataFrame]], y: str) -> None:
    """A line each of a name and rows."""
    for colour, (name, rows) in zip(f.COLOURS, lines, strict=False):
        rows = numbers(rows, y).sort_values("world_size", kind="stable")
        axes.plot(rows["world_size"], rows[y], linewidth=1, marker="o", color=colour, label=name)


def finish(axes: Any, rows: pd.DataFrame, title: str, more: Sequence[Any] = ()) -> None:
    """Axes of ranks and of what is drawn, with the legend; more: what it explains beside the lines."""
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("Ranks")
    axes.set_ylabel(title)
    f.power_of_two_ticks(axes, sorted({float(ranks) for ranks in rows["world_size"]}))
    axes.legend(handles=[*axes.get_legend_handles_labels()[0], *more], fontsize="small")


def ways(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each device, loop and wrapping, by name; each wrapping's begin with the rows that nothing wraps."""
    found = {}
    for (device, loop), own in rows.groupby(["device", "loop"], sort=False):
        wraps = [wrap for wrap in dict.fromkeys(own["wrapped_by"]) if wrap != "none"] or ["none"]
        for wrap in wraps:
            name = f"{loop}, {device}" if len(wraps) == 1 else f"{loop}, {wrap}, {device}"
            found[name] = own[own["wrapped_by"].isin(["none", wrap])]
    return found


def samples_per_s(canvas: Any, rows: pd.DataFrame, y: str) -> None:
    """A line for each device, loop and wrapping; dashed: in proportion to ranks."""
    axes = canvas.subplots()
    rows = numbers(rows, y)
    groups = ways(rows)
    over_ranks(axes, groups.items(), y)
    for colour, own in zip(f.COLOURS, groups.values(), strict=False):
        ranks = own["world_size"].sort_values()
        first = own.loc[ranks.index[0]]
        linear = [first[y] * count / first["world_size"] for count in ranks]
        axes.plot(ranks, linear, color=colour, linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / f.LEAST_RANGE, high * f.LEAST_RANGE)
    f.plain_ticks(axes, (1, 2, 5))
    finish(axes, rows, "Samples/s", [f.key("in proportion to ranks")] if rows["world_size"].nunique() > 1 else [])
