"""benchmarking_script of CS336 assignment 2, part c: training steps after few warm-up steps, or none.

Each cell is meant to run in a process of its own (isolation: cell), and nothing but making the model comes before its
first step: what a process pays once, it pays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.cells import Cell, Measurement, grid
from perfscribe.models.shapes import SIZES


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
    return Cell(factors, requires=("cuda",) if factors["device"] == "cuda" else (), cost=cost)


def run(cell: Cell) -> Measurement:
    """Time full steps by phase, the first ones included; the loss is checked afterwards, so as to warm nothing."""
    import torch

    from perfscribe.experiments.end_to_end.measure import Step, check_loss
    from perfscribe.models.transformer import Model
    from perfscribe.timing import record, time_phases

    device, dtype = cell["device"], cell["dtype"]
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    model = Model(SIZES[cell["size"]], cell["seq_len"], device=device)
    tokens = torch.randint(model.shape.vocab_size, (cell["batch"], cell["seq_len"] + 1), device=device)
    step = Step(model, tokens, device, dtype)
    step.make_optimizer()
    phases = time_phases(
        step.full, prepare=step.zero_grad, warmup=cell["warmup_steps"], timed=cell["timed_steps"], device=device
    )
    measurement = Measurement()
    record(measurement, "full_step_ms", phases["step"])
    for name in ("forward", "backward", "optimizer"):
        record(measurement, f"{name}_ms", phases[name])
    measurement.values |= check_loss(model, tokens, device, dtype)
    return measurement
