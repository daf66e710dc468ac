"""A launch on one node or on several: where the ranks of a cell are to be is one of its factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfscribe.distributed.launch import Launched, launch
from perfscribe.distributed.needs import ranks_per_node
from perfscribe.distributed.nodes import NodeWorkerGroup


def launch_on(
    nodes: int, program: str | Callable[..., Any], arguments: Mapping[str, Any], *, world_size: int, **options: Any
) -> Launched:
    """Run program once, on world_size ranks in all: those of one node are forked, those of several started by srun.

    options: those of a WorkerGroup, of several nodes those of a NodeWorkerGroup. ValueError: the ranks do not divide
    evenly among the nodes. Unsupported: no Slurm job has so many nodes. Else what launch() raises.
    """
    if nodes == 1:
        return launch(program, arguments, world_size=world_size, **options)
    each = ranks_per_node(world_size, nodes)
    with NodeWorkerGroup(program, nodes=nodes, ranks_per_node=each, **options) as workers:
        results = workers.ask(arguments)
    return Launched(results, workers.output)
