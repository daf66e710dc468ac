"""How all_reduce is drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes

from perfscribe import figures as f
from perfscribe.experiments.all_reduce.answers import numbers

NOTHING = "no cell was measured"
MOST_TICKS = 5
WAY = ["backend", "world_size"]


def by_size(canvas: Any, rows: pd.DataFrame) -> None:
    """Time over size, a line a backend and number of processes."""
    axes, ok = canvas.subplots(), numbers(rows[rows["status"] == "ok"], "time_ms")
    if ok.empty:
        f.no_data(axes, NOTHING)
        return
    f.lines(axes, ok, "size_bytes", "time_ms", WAY, _processes, "time_ms_iqr")
    _sizes(axes, ok)
    f.mark_statuses(axes, rows, "size_bytes")
    axes.set_ylabel("All-reduce (ms)")
    _say_missing(axes, rows)


def by_processes(canvas: Any, rows: pd.DataFrame) -> None:
    """Time over processes, a line a size, a panel a backend."""
    ok = numbers(rows[rows["status"] == "ok"], "time_ms")
    backends = list(dict.fromkeys(rows["backend"]))
    if ok.empty:
        f.no_data(canvas.subplots(), NOTHING)
        return
    for axes, backend in zip(canvas.subplots(1, len(backends), squeeze=False)[0], backends, strict=True):
        panel = ok[ok["backend"] == backend]
        axes.set_title(f"{backend} on {rows[rows['backend'] == backend]['device'].iloc[0]}")
        axes.set_xlabel("Processes")
        if panel.empty:
            f.no_data(axes, _why(rows[rows["backend"] == backend]))
            continue
        f.lines(axes, panel, "world_size", "time_ms", "message", str, "time_ms_iqr")
        f.power_of_two_ticks(axes, sorted({float(n) for n in panel["world_size"]}))
        axes.set_ylabel("All-reduce (ms)")
        _say_missing(axes, rows[rows["backend"] == backend])


def by_backend(canvas: Any, rows: pd.DataFrame) -> None:
    """Bars by size, a colour a backend, a panel a number of processes."""
    ok = numbers(rows[rows["status"] == "ok"], "host_ms")
    if ok.empty:
        f.no_data(canvas.subplots(), NOTHING)
        return
    counts, backends = sorted(set(ok["world_size"])), list(dict.fromkeys(ok["backend"]))
    messages = list(dict.fromkeys(ok.sort_values("size_bytes", kind="stable")["message"]))
    panels = canvas.subplots(1, len(counts), squeeze=False, sharey=True)[0]
    for axes, count in zip(panels, counts, strict=True):
        for number, backend in enumerate(backends):
            times = ok[(ok["world_size"] == count) & (ok["backend"] == backend)].set_index("message")["host_ms"]
            at = [messages.index(message) + 0.38 * (number - (len(backends) - 1) / 2) for message in times.index]
            axes.bar(at, times, width=0.36, color=f.COLOURS[number], label=backend)
        axes.set_yscale("log")
        _plain_ticks(axes, ok["host_ms"])
        axes.set_xticks(range(len(messages)), messages, fontsize=f.LABEL_POINTS)
        axes.set_title(f"{count} processes")
        axes.grid(axis="x", visible=False)
        _say_missing(axes, rows[rows["world_size"] == count])
    low, high = float(ok["host_ms"].min()), float(ok["host_ms"].max())
    panels[0].set_ylim(low / 3, high * 5)
    panels[0].set_ylabel("All-reduce, host clock (ms)")
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(backends))


def bandwidth(canvas: Any, rows: pd.DataFrame) -> None:
    """Bus bandwidth over size, a line an operation, a panel a backend and number of processes."""
    ok = numbers(rows[rows["status"] == "ok"], "busbw_gb_per_s")
    _panels(canvas, ok, "busbw_gb_per_s", "Bus bandwidth (GB/s)", WAY, ["operation"])


def residuals(canvas: Any, rows: pd.DataFrame) -> None:
    """Relative distance from the fitted line over size, as `bandwidth`."""
    ok = numbers(rows[rows["status"] == "ok"], "residual_percent")
    for axes in _panels(canvas, ok, "residual_percent", "Measured / fitted - 1 (%)", WAY, ["operation"], is_log=False):
        axes.axhline(0, color="#555555", linewidth=0.8)


def transports(canvas: Any, rows: pd.DataFrame) -> None:
    """Bus bandwidth over size, a line a transport, a panel a number of processes."""
    ok = numbers(rows[rows["status"] == "ok"], "busbw_gb_per_s")
    _panels(canvas, ok, "busbw_gb_per_s", "Bus bandwidth (GB/s)", ["world_size"], ["backend", "transport"])


def _panels(
    canvas: Any, ok: pd.DataFrame, y: str, title: str, panel_by: list[str], line_by: list[str], is_log: bool = True
) -> list[Axes]:
    """A panel a level of panel_by, two beside each other; lines have one legend, as they lie too close for labels."""
    if ok.empty:
        f.no_data(canvas.subplots(), NOTHING)
        return []
    groups = list(ok.groupby(panel_by, sort=False))
    across = min(2, len(groups))
    panels = list(canvas.subplots(-(-len(groups) // across), across, squeeze=False, sharey=True).flat)
    levels = list(dict.fromkeys(zip(*(ok[name] for name in line_by), strict=True)))
    for axes, (place, panel) in zip(panels, groups, strict=False):
        for level, group in panel.groupby(line_by, sort=False):
            _line(
                axes,
                group.sort_values("size_bytes", kind="stable"),
                y,
                levels.index(level),
                ": ".join(level).replace("_", "-"),
            )
        axes.set_title(_processes(place))
        axes.set_yscale("log" if is_log else "linear")
        if is_log:
            _plain_ticks(axes, ok[y])
        _sizes(axes, panel)
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    canvas.supylabel(title, fontsize=9)
    known = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    canvas.legend(known.values(), known.keys(), loc="outside upper center", ncols=2 + (len(line_by) == 1), fontsize=8)
    return panels[: len(groups)]


def _plain_ticks(axes: Axes, values: pd.Series) -> None:
    """Numbers, not powers, on a logarithmic y axis; between powers of ten too where there are few of these."""
    few = float(values.max()) < 100 * float(values.min())
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _line(axes: Axes, rows: pd.DataFrame, y: str, number: int, label: str) -> None:
    colour, marker = f.COLOURS[number % len(f.COLOURS)], f.MARKERS[number % len(f.MARKERS)]
    axes.plot(rows["size_bytes"].astype(float), rows[y], color=colour, marker=marker, markersize=4, label=label)


def _processes(place: Any) -> str:
    return f"{', '.join(map(str, place))} processes"


def _sizes(axes: Axes, rows: pd.DataFrame) -> None:
    """Name messages on the x axis, the largest first, as far as names stay apart."""
    named = dict(sorted(zip(rows["size_bytes"].astype(float), rows["message"], strict=True)))
    apart = (max(named) / min(named)) ** (1 / MOST_TICKS)
    chosen: list[float] = []
    for size in sorted(named, reverse=True):
        if not chosen or chosen[-1] / size >= apart:
            chosen.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen, [named[size] for size in chosen], fontsize=f.LABEL_POINTS)
    axes.minorticks_off()
    axes.set_xlabel("Message")


def _why(rows: pd.DataFrame) -> str:
    """Why these rows have no figures."""
    reasons = (f"{row['status']} ({row['reason']})" if row["reason"] else row["status"] for _, row in rows.iterrows())
    return ", ".join(dict.fromkeys(reasons))


def _say_missing(axes: Axes, rows: pd.DataFrame) -> None:
    """Backends, and numbers of processes of the others, without any figure, and why."""
    missing = []
    for backend, own in rows.groupby("backend", sort=False):
        if not (own["status"] == "ok").any():
            missing.append(f"{backend}: {_why(own)}")
            continue
        for count, group in own.groupby("world_size", sort=False):
            if not (group["status"] == "ok").any():
                missing.append(f"{_processes((backend, count))}: {_why(group)}")
    if missing:
        axes.text(0.02, 0.98, "\n".join(missing), transform=axes.transAxes, va="top", fontsize=7, color="#555555")
