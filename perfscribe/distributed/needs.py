"""Requirements of cells with several processes. A small module, because measuring code imports it."""

from __future__ import annotations

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # of each backend
# Imports of the process from which ranks are forked (starting.py). A measure.py names them as PRELOADED, so that
# they are imported while the measuring process does the same.
BASE = ("torch", "torch.distributed")
# The last one is imported by a process's first optimizer: a second on one core, and ranks share cores.
PRELOADED = (*BASE, "torch._dynamo")


def self_tested(backend: str, world_size: int, nodes: int = 1) -> tuple[str, ...]:
    """Require a self-test with as many processes, on as many nodes, before the cell starts (engine: gate.py).

    A world of one is not tested.
    """
    if world_size == 1:
        return ()
    return (f"preflight:{backend}:{world_size}" + (f":{nodes}" if nodes > 1 else ""),)


def of_ranks(device: str, world_size: int, nodes: int = 1) -> tuple[str, ...]:
    """Require this many nodes and, if the device is cuda, a GPU for each rank.

    Raises ValueError if the ranks do not divide evenly among the nodes.
    """
    each = ranks_per_node(world_size, nodes)
    needed = (f"nodes:{nodes}",) if nodes > 1 else ()
    return (*needed, f"cuda:{each}") if device == "cuda" else needed


def ranks_per_node(world_size: int, nodes: int) -> int:
    """Return the ranks per node; raises ValueError if they do not divide evenly."""
    if world_size % nodes:
        raise ValueError(f"world_size: {world_size} ranks do not divide evenly among {nodes} nodes")
    return world_size // nodes
