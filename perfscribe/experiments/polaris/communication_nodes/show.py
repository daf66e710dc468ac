"""Communication between real nodes next to its stand-in on one machine."""

from collections.abc import Mapping
from dataclasses import replace

from perfscribe.experiments.polaris.communication import show as one_machine
from perfscribe.experiments.polaris.communication_nodes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

TABLES = SHOWN.tables
LOOPBACK, NETWORK = "one machine, TCP over loopback", "two nodes of a cluster"
NOTE = (
    "inter: 2 nodes x 1 rank, intra: 1 node x 2 ranks; medians over interleaved turns. Impact: the ratio of medians, "
    "with an interval over turns."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's metrics for real nodes and for their stand-in on one machine."""
    shown = [
        replace(row, factors={**row.factors, "between": between})
        for name, between in (("communication_nodes", NETWORK), ("communication", LOOPBACK))
        for row in one_machine.metrics(records.get(name, []))
    ]
    first, averaging, _, *others = one_machine.METRIC_COLUMNS
    columns = [first, averaging, t.factor("between", "The two nodes are"), *others]
    return [t.make(TABLES[0], "Communication between nodes, and what stands for them", shown, columns, [NOTE])]
