"""benchmarking_script of CS336 assignment 2, part c: training steps after few warm-up steps, or none.

Each cell is meant to run in a process of its own (isolation: cell), and nothing but making the model comes before its
first step: what a process pays once, it pays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens

datasets = tokens.of_section


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of the config's device, size, context length, dtype and number of warm-up steps."""
    factors = {name: config[name] for name in ("device", "size", "seq_len", "dtype", "warmup_steps")}
    fixed = {"batch": config["batch"], "timed_steps": config["timed_steps"]}
    return [_cell({**levels, **fixed}) for levels in grid(factors)]


def _cell(factors: dict[str, Any]) -> Cell:
    shape = SIZES[factors["size"]]
    steps = factors["warmup_steps"] + factors["timed_steps"]
    # A fresh process costs some seconds, whatever the model.
    cost = 1e12 + shape.layers * 12.0 * shape.d_model**2 * factors["batch"] * factors["seq_len"] * steps
    return tokens.cell(factors, cost)


def run(cell: Cell) -> Measurement:
    """Time full steps by phase, the first ones included; the loss is checked afterwards, so as to warm nothing."""
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build, time_full

    step = build(cell.factors, cell.data_folder)
    step.make_optimizer()
    measurement = Measurement()
    time_full(step, measurement, cell["warmup_steps"], cell["timed_steps"])
    measurement.values |= check_loss(step)
    return measurement
