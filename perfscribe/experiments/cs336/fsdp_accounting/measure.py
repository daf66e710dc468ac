"""fsdp_accounting of CS336 assignment 2, 2026: training steps of one model, sharded in several ways.

A cell is a model, a backend and a number of ranks. In each turn each implementation gets a new model, as sharding one
divides its weights; a launch holds the state of one of them at a time.
"""

from __future__ import annotations

from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.experiments.cs336.ddp.measure import launched

PRELOADED = needs.PRELOADED
DDP, SHARDED, FSDP, PEER = "torch_ddp", "sharded_optimizer", "fsdp", "fully_shard"
IMPLEMENTATIONS = (DDP, SHARDED, FSDP, PEER)
# Bytes allocated (init, before_step, after_step) and the most within a phase, in the order of a step.
MOMENTS = ("init", "forward", "backward", "before_step", "step", "after_step")


def run(cell: Cell) -> Measurement:
    """Check every implementation, count memory of each and trace a step, time all interleaved, in one launch."""
    from perfscribe.experiments.cs336.fsdp_accounting.program import on_rank

    return launched(cell, on_rank)
