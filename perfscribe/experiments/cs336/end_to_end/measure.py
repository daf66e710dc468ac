"""benchmarking_script of CS336 assignment 2: forward, backward and optimizer step of the language model."""

from __future__ import annotations

from functools import partial

from perfscribe.analytic.shapes import LanguageModel, Steps
from perfscribe.base.cells import Cell, Measurement


def run(cell: Cell) -> Measurement:
    """Time a full step by phases, forward with and without a graph, and forward with backward as one; count memory.

    Peaks are those of untimed passes. The passes that need least memory come first; if a later one fails, the earlier
    results are kept. Rounds after the first only time full steps.
    """
    import torch

    from perfscribe.base.partial import kept_on_failure
    from perfscribe.instruments.timing import record, time_host
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build, peak, time_full

    step = build(cell.read(LanguageModel), cell.data_folder)
    counts = cell.read(Steps)
    time = partial(time_host, warmup=counts.warmup_steps, timed=counts.timed_steps, device=step.device)
    measurement = Measurement(values={"parameters": sum(p.numel() for p in step.model.parameters())})
    with kept_on_failure(measurement):
        if step.device == "cuda":
            measurement.values["gpu_name"] = torch.cuda.get_device_name()
        measurement.values |= check_loss(step)
        if cell.round == 1:
            record(measurement, "forward_no_grad_ms", time(step.inference))
            measurement.values |= peak("forward_no_grad", step.inference, step.device)
            record(measurement, "forward_backward_ms", time(step.forward_backward, prepare=step.zero_grad))
        step.make_optimizer()
        time_full(step, measurement, counts)
        if cell.round == 1:
            step.zero_grad()
            measurement.values |= peak("forward_graph", step.loss, step.device)
            measurement.values |= peak("full_step", step.full, step.device)
    return measurement
