"""Keys of experiments.communication_nodes with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment
from perfscribe.experiments.polaris.communication.levels import placements

LEVELS = experiment("The same between two real nodes of a cluster; skipped elsewhere", **shared.PROFILED)

SHOWN = Shown(reads=("communication",), tables=("polaris.communication_nodes",))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell of both placements per backend and implementation."""
    cells = (placements(config, *levels) for levels in product(config["backend"], config["implementation"]))
    return [replace(cell, requires=("nodes:2", *cell.requires)) for cell in cells]
