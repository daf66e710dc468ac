"""Tables, figure and answers of preflight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.findings import CannotTell, Finding, find, need
from perfscribe.measured_by import communication_variables
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

TABLES = ("fsdp.preflight", "fsdp.preflight_log")
FIGURES = ("fsdp.preflight",)
NAME = "preflight"
NOTE = (
    "Bus bandwidth of an all-reduce: bytes / time x 2(n - 1)/n; a GB of a rate is 10^9 bytes. Time: of each call the "
    "longest that any rank took. 0: trainings on as many processes start; 46: below the threshold, they are skipped; "
    "44 (in the reason of a cell that failed): there is no figure. Where a test of more than two processes fails, the "
    "all-reduce between each two of them names the slow pair. gloo shares the host's cores among its processes, so its "
    "threshold refuses a broken network alone."
)


def _notes(cells: Sequence[Record]) -> list[str]:
    """How a test is made, and what variables told NCCL to leave out."""
    told = [one for one in communication_variables(cells) if one]
    return [NOTE, f"Set in the tests' environment: {'; or '.join(told)}."] if told else [NOTE]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Each test and its verdict; what its program printed."""
    cells = records[NAME]
    same = [t.factor("backend", "Backend"), t.factor("world_size", "Processes"), _on_nodes()]
    shown = [
        *same,
        t.factor("size_mib", "Message (MiB)"),
        t.factor("algorithm", "NCCL algorithm"),
        t.value("tested_by", "Tested by"),
        t.value("busbw_gb_per_s", "busbw (GB/s)"),
        t.factor("threshold_gb_per_s", "Threshold (GB/s)"),
        t.value("exit_code", "Exit status", exact=True),
        t.value("slowest_pair", "Slowest pair (ranks)"),
        t.value("slowest_pair_gb_per_s", "Its busbw (GB/s)"),
        t.value("nodes", "Names of the nodes"),
        t.Column("calls", "Timed calls", _calls, exact=True),
    ]
    log = [*same, t.value("number", "Line", exact=True), t.value("text", "Log")]
    return [
        t.make(TABLES[0], "All-reduce self-test before trainings on several processes", cells, shown, _notes(cells)),
        t.make(TABLES[1], "Log of each self-test", [row for cell in cells for row in _lines(cell)], log),
    ]


def _on_nodes() -> t.Column:
    return t.Column("on_nodes", "Nodes", lambda record: record.factors.get("nodes", 1), kind="factor", exact=True)


def _calls(record: Record) -> Any:
    """Our own loop keeps each call; NVIDIA's program tells their mean alone."""
    if "time_ms" in record.samples:
        return t.summary(record, "time_ms").n
    if not record.ok:
        raise KeyError("no test was made")
    return record.factors["iterations"]


def _lines(record: Record) -> list[Record]:
    """A row for each line that the test's program printed and that says something."""
    lines = [line for line in record.series.get("log", []) if line.strip(" #")]
    if not lines:
        return [replace(record, values={})]
    return [
        replace(record, values={"number": number, "text": line.strip()}, samples={})
        for number, line in enumerate(lines, start=1)
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether the links carried what was asked of them."""
    table = tables[TABLES[0]]
    return [find("fsdp.preflight", TABLES[:1], lambda: _verdict(table.frame))]


def _verdict(rows: pd.DataFrame) -> tuple[str, str]:
    ran = rows[rows["status"] == "ok"]
    broken = rows[rows["status"].isin(["failed", "timeout", "oom"])]
    silent = [f"{_who(row)} gave no figure ({row['reason']})" for _, row in broken.iterrows()]
    if ran.empty:
        raise CannotTell("; ".join(silent) or "no self-test ran here")
    slow = ran[ran["exit_code"] != 0]
    if len(slow) or silent:
        told = [*(_told(row) for _, row in slow.iterrows()), *silent]
        return f"Trainings are held back: {'; '.join(told)}.", "answered"
    lowest = min((row for _, row in need(ran, 1, "self-tests").iterrows()), key=_margin)
    return (
        f"None of the {len(ran)} self-tests is below its threshold; nearest to it is {_told(lowest)}.",
        "answered",
    )


def _margin(row: Any) -> float:
    threshold = float(row["threshold_gb_per_s"])
    return float(row["busbw_gb_per_s"]) / threshold if threshold else float("inf")


def _who(row: Any) -> str:
    where = f" on {row['on_nodes']} nodes" if row["on_nodes"] > 1 else ""
    return f"{row['world_size']} processes{where} by {row['backend']}"


def _told(row: Any) -> str:
    text = f"{_who(row)}, {format_figure(row['busbw_gb_per_s'])} GB/s for a threshold of {row['threshold_gb_per_s']:g}"
    if row["slowest_pair"] == "none":
        return text
    return f"{text}, slowest between ranks {row['slowest_pair']}"


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Bandwidth over processes."""
    rows = tables[TABLES[0]].frame
    caption = "Bus bandwidth of the self-test's all-reduce over processes, and its threshold, dashed."
    return [f.Figure(FIGURES[0], caption, partial(_draw, rows=rows), sample="time_ms")]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    axes = canvas.add_subplot()
    ok = rows[rows["status"] == "ok"]
    axes.set_xlabel("processes")
    axes.set_ylabel("busbw (GB/s)")
    if ok.empty:
        f.no_data(axes, "no self-test gave a figure")
        return
    ok = ok.assign(way=[_way(row) for _, row in ok.iterrows()])
    f.lines(axes, ok, "world_size", "busbw_gb_per_s", "way")
    for number, (_, group) in enumerate(ok.groupby("way", sort=False)):
        threshold = float(group["threshold_gb_per_s"].iloc[0])
        if threshold > 0:
            axes.axhline(threshold, linestyle="--", linewidth=0.8, color=f.COLOURS[number % len(f.COLOURS)])
    f.power_of_two_ticks(axes, sorted(set(ok["world_size"])))
    over_nodes = (ok["on_nodes"] > 1).any()
    f.mark_statuses(axes, rows if over_nodes else rows[rows["on_nodes"] == 1], "world_size")


def _way(row: Any) -> str:
    """A line of the figure: backend, and how many processes each of several nodes has."""
    nodes = row["on_nodes"]
    return str(row["backend"]) if nodes == 1 else f"{row['backend']}, nodes of {row['world_size'] // nodes}"
