"""The FSDP workshop's exercises with its custom model, the same one in every row.

Trainer's rows are the workshop's; the bare loop is their peer, of the same steps; the tuned one is what the same GPUs
can do: bf16, blocks compiled, a batch that fills the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.training import launching

TUNED = "tuned"

datasets, PRELOADED, run = squad_sets.datasets, launching.PRELOADED, launching.run


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Each loop with each number of ranks on one node; the workshop's own on several nodes."""
    dataset = squad_sets.dataset_name(config)
    shape = {name: config[name] for name in launching.SHAPE}
    tuned = {name: level for name, level in config["tuned"].items() if name != "world_size"}
    found = []
    for backend in config["backend"]:
        for loop, wrap, first in _ways(config):
            own = [n for n in (config["tuned"] if loop == TUNED else config)["world_size"] if first or n > 1]
            several = config["nodes"] if first and loop == config["loop"][0] else []
            for placed in launching.placements(own, several, config["ranks_per_node"]):
                levels = {**placed, "backend": backend, "loop": loop, "model_name": "simple_gpt", **shape, "wrap": wrap}
                work = launching.work(levels, config)
                if loop == TUNED:
                    levels |= {**tuned, "grad_acc": 1, "num_epochs": 1}
                    work *= 2
                found.append(launching.cell(levels, config, dataset, work))
    return found


def _ways(config: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    return [(loop, *way) for loop in config["loop"] for way in launching.ways(loop, config["wrap"])]
