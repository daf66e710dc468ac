"""The FSDP workshop's multi-GPU and multi-node exercises: BLOOM, its rows divided among more and more ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.training import launching

datasets, run = squad_sets.datasets, launching.run
PRELOADED = (*launching.PRELOADED, launching.BLOOMS_CODE)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """All ranks on one node; then as many on each of several nodes, which a cluster's job has."""
    dataset = squad_sets.dataset_name(config)
    found = []
    for backend in config["backend"]:
        own = {"backend": backend, "loop": config["loop"], "model_name": config["model_name"]}
        for wrap, first in launching.ways(config["loop"], config["wrap"]):
            ranks = [n for n in config["world_size"] if first or n > 1]
            nodes = config["nodes"] if first else []
            for placed in launching.placements(ranks, nodes, config["ranks_per_node"]):
                levels = {**placed, **own, "wrap": wrap}
                found.append(launching.cell(levels, config, dataset, launching.work(levels, config)))
    return found
