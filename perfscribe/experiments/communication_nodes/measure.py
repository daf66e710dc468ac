"""Communication between real nodes: the Polaris homework's training on two ranks of a node against one on each of two.

What `communication` measures on one machine, where the loopback interface stands for the network. Both placements take
turns here too; a cluster's job has the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.experiments.communication.measure import (
    COLLECTIVE_TIMEOUT_S,
    DEVICES,
    LIMIT_S,
    MODEL,
    PLACEMENTS,
    RANKS,
    SCHEDULE,
    combine,
)
from perfscribe.instruments import precision

if TYPE_CHECKING:
    from perfscribe.distributed.launch import WorkerGroup

NODES = 2


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Both placements, by backend and implementation."""
    same = {name: config[name] for name in (*MODEL, *SCHEDULE)}
    found = []
    for level in grid({"backend": config["backend"], "implementation": config["implementation"]}):
        device = DEVICES[str(level["backend"])]
        needs = [f"nodes:{NODES}", *precision.requires(device, config["dtype"])]
        if device == "cuda":
            needs.append(f"cuda:{RANKS}")
        factors = {"part": "placements", "device": device, "world_size": RANKS, **level, "tool": config["tool"]}
        found.append(Cell({**factors, **same, "batches": config["active"]}, requires=tuple(needs)))
    return found


def run(cell: Cell) -> Measurement:
    """Turns of both placements; the first one warms up."""
    import random
    import time

    from perfscribe.experiments.communication.program import on_rank

    spent = {"warmup_s": 0.0, "timed_s": 0.0}
    turns: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in PLACEMENTS}
    worker_groups: dict[str, WorkerGroup] = {}
    try:
        for name in PLACEMENTS:
            worker_groups[name] = _workers(cell, name, on_rank, random.getrandbits(31))
        for turn in range(-1, cell["turns"]):
            began = time.perf_counter()
            for name in PLACEMENTS if turn % 2 == 0 else reversed(PLACEMENTS):
                turns[name].append(worker_groups[name].ask({"factors": dict(cell.factors), "keep": ""}))
            spent["warmup_s" if turn < 0 else "timed_s"] += time.perf_counter() - began
    finally:
        for workers in worker_groups.values():
            workers.close()
    return combine(turns, str(cell["device"]), warmup_s=spent["warmup_s"], timed_s=spent["timed_s"])


def _workers(cell: Cell, placement: str, program: Callable[..., Any], seed: int) -> WorkerGroup:
    """The placement's ranks: those of one node are started there, those of two by srun."""
    from perfscribe.distributed.launch import WorkerGroup

    nodes, ranks_per_node = PLACEMENTS[placement]
    return WorkerGroup(
        program,
        world_size=nodes * ranks_per_node,
        nodes=nodes,
        backend=cell["backend"],
        timeout_s=LIMIT_S,
        collective_timeout_s=COLLECTIVE_TIMEOUT_S,
        seed=seed,
    )
