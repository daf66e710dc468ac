"""Communication between real nodes."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe.experiments.communication import show as one_machine
from perfscribe.experiments.communication_nodes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

NOTE = (
    "inter: 2 nodes x 1 rank, intra: 1 node x 2 ranks; medians over interleaved turns. Impact: the ratio of medians, "
    "with an interval over turns."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """The homework's figures, of real nodes."""
    rows = one_machine.metrics(records["communication_nodes"])
    title = "Communication between two nodes of a cluster"
    return [t.make(SHOWN.tables[0], title, rows, one_machine.METRIC_COLUMNS, [NOTE])]
