"""Communication between real nodes: the Polaris homework's training on two ranks of a node against one on each of two.

`communication` measures the same on one machine, where the loopback interface replaces the network. Here too, both
placements alternate; the nodes are those of a cluster's job.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from perfscribe.experiments.polaris.communication.measure import LIMIT_S, PLACEMENTS, Profiled, take_turns

if TYPE_CHECKING:
    from perfscribe.base.cells import Cell, Measurement
    from perfscribe.distributed.launch import WorkerGroup


def run(cell: Cell) -> Measurement:
    """Alternate turns of both placements; the first turn warms up."""
    with ExitStack() as held:
        groups = {name: held.enter_context(closing(_workers(cell, name))) for name in PLACEMENTS}
        return take_turns(replace(cell, data_folder=""), groups.__getitem__)  # keep no trace files


def _workers(cell: Cell, placement: str) -> WorkerGroup:
    """Return the placement's ranks: those of one node started directly, those of two by srun."""
    from perfscribe.distributed.launch import WorkerGroup
    from perfscribe.experiments.polaris.communication.program import on_rank

    nodes, ranks_per_node = PLACEMENTS[placement]
    return WorkerGroup(
        on_rank,
        world_size=nodes * ranks_per_node,
        nodes=nodes,
        backend=cell.read(Profiled).backend,
        timeout_s=LIMIT_S,
    )
