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
    """All ranks on one node, by Trainer as the workshop does and tuned; as many on each of a cluster's nodes."""
    return launching.over_ranks({"model_name": config["model_name"]}, config)
