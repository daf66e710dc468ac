"""The FSDP workshop's weak scaling: twice the GPUs, twice the layers, half the batch of each GPU.

Its own rows, and two variants of equal work a GPU (analytic.weak_scaling says which). Rows that are the same training
are measured once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.weak_scaling import Setup, setups
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.training import launching

datasets, PRELOADED, run = squad_sets.datasets, launching.PRELOADED, launching.run


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """A cell for each training that differs; `variants` names the rows that it stands for."""
    dataset = squad_sets.dataset_name(config)
    shape = SimpleGptShape(config["vocab_size"], config["hidden_size"], 1, config["num_heads"], config["ffn"])
    lists = (config[name] for name in ("world_size", "layers", "batch"))
    found: dict[tuple[int, int, int], list[Setup]] = {}
    for setup in setups(shape, config["max_length"], *lists):
        found.setdefault((setup.world_size, setup.shape.num_layers, setup.batch), []).append(setup)
    return [_cell(same, backend, config, dataset) for backend in config["backend"] for same in found.values()]


def _cell(same: list[Setup], backend: str, config: Mapping[str, Any], dataset: str) -> Cell:
    setup = same[0]
    levels = {
        "variants": "; ".join(one.variant for one in same),
        "nodes": nodes_for(setup.world_size, config["ranks_per_node"]),
        "world_size": setup.world_size,
        "backend": backend,
        "loop": config["loop"],
        "wrap": config["wrap"],
        "model_name": "simple_gpt",
        **{name: getattr(setup.shape, name) for name in launching.SHAPE},
        "batch_size": setup.batch,
    }
    steps = config["train_size"] * config["num_epochs"] / setup.total_batch
    return launching.cell(levels, config, dataset, steps * setup.flop_per_gpu * setup.world_size)


def nodes_for(world_size: int, most: int) -> int:
    """The fewest nodes that the ranks divide evenly among, with `most` on each at most."""
    return next(nodes for nodes in range(1, world_size + 1) if world_size % nodes == 0 and world_size // nodes <= most)
