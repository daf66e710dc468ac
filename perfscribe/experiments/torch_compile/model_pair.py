"""A training step of the language model, its model eager and compiled; the optimizer is the same."""

from __future__ import annotations

import copy
from typing import cast

import torch

from perfscribe.base.cells import Cell
from perfscribe.experiments.torch_compile.pair import Pair
from perfscribe.instruments.compiling import as_implemented
from perfscribe.models.loss_check import TOLERANCE, check_loss
from perfscribe.models.training_step import Step, build
from perfscribe.models.transformer import Model

# Largest relative error (Frobenius norm) of a weight's gradient against the eager one's. Both are rounded, through all
# layers, so this only tells a wrong program from a right one.
GRADIENT_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 2e-1, "fp16": 5e-2}


def model_pair(cell: Cell) -> Pair:
    """The cell's model, and a training step with it both ways."""
    step = build(cell.factors, cell.data_folder)
    step.make_optimizer()
    other = copy.copy(step)  # the same parameters and optimizer, another way through the model
    other.model = as_implemented(step.model, cell["backend"], cell["implementation"])
    return Pair(
        eager=step.full,
        compiled=other.full,
        prepare=step.zero_grad,
        check_eager=lambda: check_loss(step),
        check_compiled=lambda: compare(step, other),
        whole="full_step",
    )


def compare(eager: Step, other: Step) -> dict[str, float]:
    """Relative errors of the other's loss and of some of its gradients against the eager ones; ValueError beyond."""
    expected_loss, expected = _loss_and_gradients(eager, eager.model)
    loss, gradients = _loss_and_gradients(other, eager.model)
    found = {"compiled_loss_error": abs(loss - expected_loss) / expected_loss}
    _refuse(found["compiled_loss_error"], TOLERANCE[eager.dtype], "the loss")
    worst = max(float((gradients[name] - g).norm() / g.norm()) for name, g in expected.items())
    _refuse(worst, GRADIENT_TOLERANCE[eager.dtype], "a gradient")
    return found | {"compiled_gradient_error": worst}


def _refuse(error: float, allowed: float, what: str) -> None:
    if not error <= allowed:
        raise ValueError(f"compiled: {what} is off by {error:.2g} against eager, allowed {allowed:g}")


def _loss_and_gradients(step: Step, model: Model) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of the whole batch, and copies of the gradients of a weight of the first and of the last block."""
    model.zero_grad(set_to_none=True)
    loss = step.loss()
    loss.backward()
    watched = {"first": model.blocks[0].get_parameter("attention.q.weight")}
    watched["last"] = model.blocks[-1].get_parameter("feed_forward.w2.weight")
    gradients = {name: cast(torch.Tensor, weight.grad).clone() for name, weight in watched.items()}
    value = float(loss.detach())
    model.zero_grad(set_to_none=True)
    return value, gradients
