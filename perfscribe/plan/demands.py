"""Requirements of cells beyond a device: self-tests to pass first, exactly one GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfscribe.base.cells import Cell
from perfscribe.distributed.needs import self_tested

SELF_TEST = "preflight"  # the experiment
CHAPTERS = ("fsdp",)  # chapters whose experiments train; the experiments of the others measure links
BACKENDS = ("gloo", "nccl")


class Demand(NamedTuple):
    """A self-test that a cell waits for: world_size processes in all, evenly distributed over the nodes."""

    backend: str
    world_size: int
    nodes: int = 1


def demands(requires: Iterable[str]) -> Iterator[Demand]:
    """Yield each self-test that a cell waits for."""
    for name in requires:
        kind, *parts = name.split(":")
        if kind == SELF_TEST:
            yield Demand(parts[0], *map(int, parts[1:]))


def waiting(cell: Cell, experiment: str, chapters: Iterable[str]) -> Cell:
    """Return the cell as planned: a training on several processes gets the self-test that it waits for."""
    backend, world_size = cell.factors.get("backend"), cell.factors.get("world_size")
    trains = experiment != SELF_TEST and bool(set(chapters) & set(CHAPTERS))
    if not trains or backend not in BACKENDS or not isinstance(world_size, int) or any(demands(cell.requires)):
        return cell
    nodes = cell.factors.get("nodes", 1)
    test = self_tested(str(backend), world_size, nodes if isinstance(nodes, int) else 1)
    return replace(cell, requires=(*cell.requires, *test))


def meeting(cell: Cell) -> Cell:
    """Return the cell; if it starts ranks on one machine, it also requires the loopback interface."""
    on_one_node = cell.factors.get("nodes", 1) == 1 and not any(name.startswith("nodes:") for name in cell.requires)
    starts_ranks = "world_size" in cell.factors and on_one_node
    return replace(cell, requires=(*cell.requires, "loopback")) if starts_ranks else cell


def needs_one_gpu(cells: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether every measured cell of a shard's plan runs on exactly one GPU."""
    measured = [cell["requires"] for cell in cells if not cell["skip"]]
    return bool(measured) and all(_on_one_gpu(requires) for requires in measured)


def _on_one_gpu(requires: Sequence[str]) -> bool:
    # Capabilities with a number start processes, which use links and cores.
    counted = any(name.startswith(("cuda:", "nodes:", "preflight:")) for name in requires)
    return "cuda" in requires and not counted
