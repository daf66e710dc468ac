"""Training of the Polaris homework's model on one device, for as many epochs as it asks.

Beside the homework's loader, which collates samples one by one, batches drawn at once from the host's memory and from
the device's: what remains is the time of the steps themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.instruments import precision

SIZES = ("d_model", "d_ff", "samples", "source_length", "target_length", "batch", "epochs")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of device, number of layers and way to draw batches."""
    fixed = {name: config[name] for name in SIZES} | {"dtype": config["dtype"]}
    varied = {name: config[name] for name in ("device", "layers", "batches")}
    return [_cell({**levels, **fixed}) for levels in grid(varied)]


def _cell(factors: dict[str, Any]) -> Cell:
    work = factors["layers"] * factors["d_model"] * (factors["d_model"] + factors["d_ff"])
    cost = float(factors["epochs"] * factors["samples"] * (1e6 + work))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)


def run(cell: Cell) -> Measurement:
    """Train; the loss is checked afterwards, so that the first epoch is as cold as the homework's."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell, cold=True)
