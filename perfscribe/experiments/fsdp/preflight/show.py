"""Table of the all-reduce self-test."""

from collections.abc import Mapping
from typing import Any

from perfscribe.experiments.fsdp.preflight.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NOTES = (
    "Bus bandwidth of an all-reduce: bytes / time x 2(n - 1)/n, of the slowest rank in each call.",
    "Where a test fails, trainings on as many processes are skipped, and the slowest pair of ranks is named.",
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of tests and their verdicts."""
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
    """Return the number of timed calls; NVIDIA's program reports only their mean."""
    return t.summary(record, "time_ms").n if "time_ms" in record.samples else record.factors["iterations"]
