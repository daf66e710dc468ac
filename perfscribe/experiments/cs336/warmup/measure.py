"""benchmarking_script of CS336 assignment 2, part c: training steps after few warm-up steps, or none.

Each cell is meant to run in a process of its own (isolation: cell), and nothing but making the model comes before its
first step: what a process pays once, it pays there.
"""

from __future__ import annotations

from perfscribe.base.cells import Cell, Measurement


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
