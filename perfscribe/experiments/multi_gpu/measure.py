"""The FSDP workshop's multi-GPU and multi-node exercises: BLOOM, its rows divided among more and more ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.cells import Cell, Measurement
from perfscribe.counters.weak_scaling import step_flop
from perfscribe.data import squad_sets
from perfscribe.models.workshop_shapes import BLOOM
from perfscribe.training import launching
from perfscribe.training.launching import ONE_EACH, ONE_NODE


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The workshop's rows."""
    return squad_sets.datasets(config)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """All ranks on one node; then a rank on each of several nodes, which one machine cannot have."""
    dataset = squad_sets.dataset_name(config)
    found = []
    for backend in config["backend"]:
        for placement, worlds in ((ONE_NODE, config["world_size"]), (ONE_EACH, config["nodes"])):
            for ranks in worlds:
                levels = {"placement": placement, "world_size": ranks, "backend": backend, "loop": config["loop"]}
                levels["model_name"] = config["model_name"]
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
