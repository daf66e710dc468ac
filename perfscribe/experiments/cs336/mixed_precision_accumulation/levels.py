"""Keys of experiments.mixed_precision_accumulation with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import constant, devices, experiment
from perfscribe.experiments.cs336.mixed_precision_accumulation.measure import ACCUMULATIONS

LEVELS = experiment(
    "The sum of many small equal terms in fp32, in fp16 and in a mix of both",
    terms=constant(1000),
    addend=constant(0.01),
    device=devices(["cpu"], gpu=["cpu", "cuda"]),
)

SHOWN = Shown(tables=("cs336.mixed_precision_accumulation",))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per device and accumulation; terms and addend are factors of one level."""
    levels = {
        "device": config["device"],
        "accumulation": list(ACCUMULATIONS),
        "terms": [config["terms"]],
        "addend": [config["addend"]],
    }
    return [
        Cell(factors, requires=("cuda",) if factors["device"] == "cuda" else (), cost=float(config["terms"]))
        for factors in grid(levels)
    ]
