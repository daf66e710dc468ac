"""Conversion of cells to and from plan files, and cell keys."""

import hashlib
from collections.abc import Mapping
from typing import Any

from perfscribe.base import files
from perfscribe.base.cells import Cell


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Convert a cell for a plan file, without what the worker fills in."""
    held = {**vars(cell), "factors": dict(cell.factors)}
    del held["data_folder"], held["round"]
    return held


def cell_from_json(value: Mapping[str, Any], data_folder: str = "", number: int = 1) -> Cell:
    """Invert cell_to_json; data_folder: folder of the data sets; number: of the round."""
    return Cell(
        factors=dict(value["factors"]),
        requires=tuple(value["requires"]),
        cost=value["cost"],
        data=tuple(value["data"]),
        data_folder=data_folder,
        round=number,
        skip=value["skip"],
    )


def cell_key(experiment: str, factors: Mapping[str, Any], code: str, data_digest: str, seed: int) -> str:
    """16 hex digits of everything that a figure depends on except the machine."""
    text = files.canonical([experiment, dict(factors), code, data_digest, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
