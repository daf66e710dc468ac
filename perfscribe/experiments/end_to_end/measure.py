"""benchmarking_script of CS336 assignment 2: forward, backward and optimizer step of the language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every context length."""
    contexts = [*config["seq_len"], config["single_length"]["seq_len"]]
    return tokens.datasets([config["batch"]], contexts, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Size x context x dtype, then at one context the dtypes asked for there alone."""
    single = config["single_length"]
    everywhere = {name: config[name] for name in ("device", "size", "seq_len", "dtype")}
    at_one = {**everywhere, "seq_len": [single["seq_len"]], "dtype": single["dtype"]}
    wanted = [*grid(everywhere)]
    wanted += [levels for levels in grid(at_one) if levels not in wanted]
    fixed = {name: config[name] for name in ("warmup_steps", "batch", "timed_steps")}
    return [_cell({**levels, **fixed}) for levels in wanted]


def _cell(factors: dict[str, Any]) -> Cell:
    # True fp32 runs without tensor cores and costs about four times what the others do.
    weight = 4.0 if factors["dtype"] == "fp32" else 1.0
    shape, positions = SIZES[factors["size"]], factors["batch"] * factors["seq_len"]
    work = shape.layers * (12 * shape.d_model**2 + 2 * factors["seq_len"] * shape.d_model) * positions
    steps = factors["warmup_steps"] + factors["timed_steps"]
    return tokens.cell(factors, cost=float(weight * steps * (work + 1e8)))


def run(cell: Cell) -> Measurement:
    """Time a full step by phases, forward with and without a graph, and forward with backward as one; count memory.

    Peaks are those of untimed passes. The passes that need least memory come first; a later one that fails still takes
    the cell's figures along.
    """
    import torch

    from perfscribe.base.partial import kept_on_failure
    from perfscribe.instruments.timing import record, time_host
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build, peak, time_full

    step = build(cell.factors, cell.data_folder)
    counts = {"warmup": cell["warmup_steps"], "timed": cell["timed_steps"], "device": step.device}
    measurement = Measurement(values={"parameters": sum(p.numel() for p in step.model.parameters())})
    with kept_on_failure(measurement):
        if step.device == "cuda":
            measurement.values["gpu_name"] = torch.cuda.get_device_name()
        measurement.values |= check_loss(step)
        record(measurement, "forward_no_grad_ms", time_host(step.inference, **counts))
        measurement.values |= peak("forward_no_grad", step.inference, step.device)
        record(measurement, "forward_backward_ms", time_host(step.forward_backward, prepare=step.zero_grad, **counts))
        step.make_optimizer()
        time_full(step, measurement, cell["warmup_steps"], cell["timed_steps"])
        step.zero_grad()
        measurement.values |= peak("forward_graph", step.loss, step.device)
        measurement.values |= peak("full_step", step.full, step.device)
    return measurement
