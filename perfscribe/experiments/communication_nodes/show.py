"""Communication between real nodes beside what stands for it on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfscribe.experiments.communication import rows
from perfscribe.experiments.communication import show as one_machine
from perfscribe.experiments.communication_nodes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

NAME, ONE_MACHINE = "communication_nodes", "communication"
TABLES = SHOWN.tables
LOOPBACK, NETWORK = "one machine, TCP over loopback", "two nodes of a cluster"
NOTE = (
    "inter: 2 nodes x 1 rank, intra: 1 node x 2 ranks; medians over interleaved turns. Impact: the ratio of medians, "
    "with an interval over turns."
)
COLUMNS = ("backend", "implementation", "metric", "inter", "intra")
COLUMNS_TOO = ("impact", "impact_interval", "impact_verdict", "turns")


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's figures, of real nodes and of what stands for them."""
    shown = [
        replace(row, factors={**row.factors, "between": between})
        for name, between in ((NAME, NETWORK), (ONE_MACHINE, LOOPBACK))
        for row in rows.metrics(records.get(name, []))
        if row.factors["tool"] == rows.TORCH_PROFILER
    ]
    own = [column for column in one_machine.metrics() if column.name in (*COLUMNS, *COLUMNS_TOO)]
    of = [own[0], own[1], t.factor("between", "The two nodes are"), *own[2:]]
    return [t.make(TABLES[0], "Communication between nodes, and what stands for them", shown, of, [NOTE])]
