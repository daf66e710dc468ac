"""The FSDP workshop's multi-GPU and multi-node exercises: BLOOM, its rows divided among more and more ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import squad_sets
from perfscribe.training import launching


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The workshop's rows."""
    return squad_sets.datasets(config)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """All ranks on one node; then as many on each of several nodes, which a cluster's job has."""
    dataset = squad_sets.dataset_name(config)
    found = []
    for backend in config["backend"]:
        for placed in launching.placements(config["world_size"], config["nodes"], config["ranks_per_node"]):
            levels = {**placed, "backend": backend, "loop": config["loop"], "model_name": config["model_name"]}
            found.append(launching.cell(levels, config, dataset, _work(config)))
    return found


def _work(config: Mapping[str, Any]) -> float:
    tokens = config["train_size"] * config["num_epochs"] * config["max_length"]
    return float(step_flop(BLOOM[config["model_name"]], tokens, config["max_length"]))


def start_early() -> None:
    """Start the process that ranks are forked from."""
    launching.start_early(bloom=True)


def run(cell: Cell) -> Measurement:
    """Train on the cell's ranks."""
    return launching.run(cell)
