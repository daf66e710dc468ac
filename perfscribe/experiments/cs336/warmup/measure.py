"""Measures training steps after few warm-up steps or none (CS336 assignment 2, benchmarking_script, part c).

Each cell is meant to run in a new process (isolation: cell) that only builds the model before its first step, so that
this step includes all one-time costs of a process.
"""

from __future__ import annotations

from perfscribe.analytic.shapes import LanguageModel, Steps
from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Time full steps by phase, first ones included; the loss is checked afterwards, so that it warms up nothing."""
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build, time_full

    step = build(cell.read(LanguageModel), cell.data_folder)
    step.make_optimizer()
    measurement = Measurement()
    time_full(step, measurement, cell.read(Steps))
    measurement.values |= check_loss(step)
    return measurement
