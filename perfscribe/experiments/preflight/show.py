"""Table and figure of preflight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe.experiments.preflight.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NOTES = (
    "Bus bandwidth of an all-reduce: bytes / time x 2(n - 1)/n, of the slowest rank in each call.",
    "Where a test fails, trainings on as many processes are skipped, and the slowest pair of ranks is named.",
)
CAPTION = "Bus bandwidth of the self-test's all-reduce; dashed: its threshold."


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Each test and its verdict."""
    shown = [
        *t.factors(backend="Backend", world_size="Processes"),
        t.factor("on_nodes", "Nodes", lambda record: record.factors.get("nodes", 1)),
        *t.factors(size_mib="Message (MiB)", algorithm="NCCL algorithm"),
        *t.values(tested_by="Tested by", busbw_gb_per_s="busbw (GB/s)"),
        t.factor("threshold_gb_per_s", "Threshold (GB/s)"),
        t.value("exit_code", "Exit status", exact=True),
        *t.values(slowest_pair="Slowest pair (ranks)", slowest_pair_gb_per_s="Its busbw (GB/s)"),
        *t.values(nodes="Names of the nodes"),
        t.value("machines", "Machines", exact=True),
        t.Column("calls", "Timed calls", _calls, exact=True),
    ]
    return [t.make(TABLES[0], "All-reduce self-test before trainings", records["preflight"], shown, NOTES)]


def _calls(record: Record) -> Any:
    """Our own loop keeps each call; NVIDIA's program tells their mean alone."""
    if "time_ms" in record.samples:
        return t.summary(record, "time_ms").n
    if not record.ok:
        raise KeyError("no test was made")
    return record.factors["iterations"]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Bandwidth over processes."""
    draw = f.of(tables[TABLES[0]].frame, _draw)
    return [f.Figure(FIGURES[0], CAPTION, draw, sample="time_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    axes = canvas.add_subplot()
    ok = rows[rows["status"] == "ok"]
    axes.set_xlabel("Processes")
    axes.set_ylabel("busbw (GB/s)")
    ok = ok.assign(way=[way(row) for _, row in ok.iterrows()])
    f.lines(axes, ok, "world_size", "busbw_gb_per_s", "way")
    for colour, (name, group) in zip(f.COLOURS, ok.groupby("way", sort=False), strict=False):
        threshold = float(group["threshold_gb_per_s"].iloc[0])
        if threshold > 0:
            said = f"threshold, {name}: {threshold:g} GB/s"
            axes.axhline(threshold, linestyle="--", linewidth=0.8, color=colour, label=said)
    canvas.legend(*axes.get_legend_handles_labels(), fontsize=f.LABEL_POINTS, loc="outside upper center", ncols=2)
    f.power_of_two_ticks(axes, sorted(set(ok["world_size"])))
    over_nodes = (ok["on_nodes"] > 1).any()
    f.mark_statuses(axes, rows if over_nodes else rows[rows["on_nodes"] == 1], "world_size")


def way(row: Any) -> str:
    """A line of the figure: backend, and how many processes each of several nodes has."""
    nodes = row["on_nodes"]
    return str(row["backend"]) if nodes == 1 else f"{row['backend']}, nodes of {row['world_size'] // nodes}"
