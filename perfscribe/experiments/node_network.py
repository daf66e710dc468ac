"""The network between nodes as communication_nodes measured it: what trainings on several nodes are predicted with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from perfscribe.analytic.traffic import busbw_gb_per_s
from perfscribe.experiments.communication import show as placements
from perfscribe.experiments.communication.measure import RANKS, TORCH_PROFILER
from perfscribe.records.records import Record

EXPERIMENT, ALL_REDUCE = "communication_nodes", "all_reduce"


@dataclass(frozen=True)
class Network:
    """Bus bandwidth between two nodes with a rank on each, by backend."""

    bus_gb_per_s: dict[str, float]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Network:
        """From the gradients that communication_nodes sent; of several implementations the fastest counts."""
        found: dict[str, float] = {}
        for record in placements.of_placements(records):
            if not record.ok or record.factors["tool"] != TORCH_PROFILER:
                continue
            sent = float(record.values["gradient_bytes"]) * record.factors["active"]
            transfer_ms = median(placements.turns(record, f"{placements.INTER}_transfer_ms"))
            rate = busbw_gb_per_s(ALL_REDUCE, RANKS, round(sent), transfer_ms)
            backend = str(record.factors["backend"])
            found[backend] = max(rate, found.get(backend, 0.0))
        return cls(found)
