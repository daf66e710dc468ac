"""Communication between real nodes beside what stands for it on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.communication import columns, rows
from perfscribe.findings import CannotTell, Finding, find, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

NAME, ONE_MACHINE = "communication_nodes", "communication"
READS = ("communication",)
TABLES = ("polaris.communication_nodes",)
FIGURES = ()
LOOPBACK, NETWORK = "one machine, TCP over loopback", "two nodes of a cluster"
NOTE = (
    "inter: 2 nodes x 1 rank, intra: 1 node x 2 ranks; medians over turns, in which the two take turns. On a cluster "
    "one job has both nodes and measures both placements, ranks of two nodes started by srun, which starts one "
    "torchrun a node. Rows of one machine are those of the table above. Impact: the ratio of medians, its interval "
    "over turns (bootstrap)."
)
SHOWN = ("backend", "implementation", "metric", "between", "inter", "intra", "impact", "impact_interval")
SHOWN_ALSO = ("impact_verdict", "turns")


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's figures, of real nodes and of what stands for them."""
    shown = [
        replace(row, factors={**row.factors, "between": between})
        for name, between in ((NAME, NETWORK), (ONE_MACHINE, LOOPBACK))
        for row in rows.metrics(records.get(name, []))
        if row.factors["tool"] == rows.TORCH_PROFILER
    ]
    own = [column for column in columns.metrics() if column.name in (*SHOWN, *SHOWN_ALSO)]
    of = [own[0], own[1], t.factor("between", "The two nodes are"), *own[2:]]
    return [t.make(TABLES[0], "Communication between nodes, and what stands for them", shown, of, [NOTE])]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What a network between nodes costs beside the loopback interface."""
    ok = tables[TABLES[0]].ok
    return [find("polaris.communication_nodes", TABLES, lambda: _cost(ok))]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """None: the numbers are few."""
    return []


def _cost(ok: pd.DataFrame) -> str:
    of_nodes = ok[ok["between"] == NETWORK]
    if of_nodes.empty:
        raise CannotTell("no job with two nodes has measured")
    said = []
    for (backend, implementation), own in need(of_nodes, 1, "cells of two nodes").groupby(
        ["backend", "implementation"], sort=False
    ):
        transfer = own[own["metric"] == rows.METRICS[rows.TRANSFER]].iloc[0]
        text = (
            f"With {backend}, {implementation} the network between two nodes takes "
            f"{format_figure(float(transfer['inter']))} ms of transfer where a node itself takes "
            f"{format_figure(float(transfer['intra']))} ms"
        )
        beside = ok[
            (ok["between"] == LOOPBACK)
            & (ok["backend"] == backend)
            & (ok["implementation"] == implementation)
            & (ok["metric"] == rows.METRICS[rows.TRANSFER])
        ]
        if not beside.empty:
            text += f"; the loopback interface of one machine takes {format_figure(float(beside.iloc[0]['inter']))} ms"
        said.append(f"{text}.")
    return " ".join(said)
