"""Traces one training step under FULL_SHARD to find what it waits for, from one row per rank to a full GPU.

A cell is one wrapping with one batch: its steps are timed, then one more is traced on rank 0.
"""

from __future__ import annotations

from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.instruments.timing import record_of_ranks

PROGRAM = "perfscribe.experiments.fsdp.fsdp_step.program"
PRELOADED = (*needs.PRELOADED, "torch.profiler", PROGRAM)
LIMIT_S = 240.0  # of a cell; below the worker's limit, so that a hanging rank is named


def run(cell: Cell) -> Measurement:
    """Return step times of the slowest rank; the rest is rank 0's."""
    from perfscribe.distributed.launch import Ranks, waiting
    from perfscribe.experiments.fsdp.fsdp_step.program import on_rank

    workers = waiting(on_rank, alone=True, timeout_s=LIMIT_S, **vars(cell.read(Ranks)))
    said = workers.ask(dict(cell.factors), LIMIT_S)
    found = Measurement(values=said[0]["values"])
    record_of_ranks(found, "step_ms", [rank["step_ms"] for rank in said])
    return found
