"""Nothing is measured here: `./run import-log` puts records into this experiment's journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.cells import Cell, Measurement, Unsupported


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """None."""
    return []


def run(cell: Cell) -> Measurement:
    """Unsupported."""
    raise Unsupported("logs are imported, not measured")
