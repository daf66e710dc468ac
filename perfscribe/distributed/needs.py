"""What a cell on several processes requires of machine and engine. Alone, so that measuring code may import it."""

from __future__ import annotations

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # of a backend
# What the process that ranks are forked from imports (fork_server.py). As PRELOADED of a measure.py it is started at
# once, so that it imports while the measuring process does.
BASE = ("torch", "torch.distributed")
# The last is what the first optimizer of a process imports: a second on one core, and ranks share cores.
PRELOADED = (*BASE, "torch._dynamo")


def self_tested(backend: str, world_size: int, nodes: int = 1) -> tuple[str, ...]:
    """A self-test of as many processes, on as many nodes, before it starts (engine: gate.py).

    A world of one is not tested.
    """
    if world_size == 1:
        return ()
    return (f"preflight:{backend}:{world_size}" + (f":{nodes}" if nodes > 1 else ""),)


def of_ranks(device: str, world_size: int, nodes: int = 1) -> tuple[str, ...]:
    """So many nodes, and on each a GPU for each of its ranks where the device is cuda.

    ValueError: the ranks do not divide evenly among the nodes.
    """
    each = ranks_per_node(world_size, nodes)
    needed = (f"nodes:{nodes}",) if nodes > 1 else ()
    return (*needed, f"cuda:{each}") if device == "cuda" else needed


def ranks_per_node(world_size: int, nodes: int) -> int:
    """Ranks on each node. ValueError: they do not divide evenly."""
    if world_size % nodes:
        raise ValueError(f"world_size: {world_size} ranks do not divide evenly among {nodes} nodes")
    return world_size // nodes
