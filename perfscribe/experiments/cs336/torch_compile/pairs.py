"""Attention and a training step, each eager and with torch.compile, and checks that both are correct."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import Tensor

from perfscribe.analytic.shapes import Attention, LanguageModel
from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.base.cells import Cell
from perfscribe.experiments.cs336.attention.passes import Attend, Passes
from perfscribe.instruments.compiling import compiled
from perfscribe.instruments.correctness import LOSS_TOLERANCE, relative_error, require
from perfscribe.instruments.timing import Mark
from perfscribe.models import loss_check
from perfscribe.models.training_step import Step, build
from perfscribe.models.transformer import Model

# Largest relative error (Frobenius norm) of a weight's gradient in a model, against eager's. Both are rounded through
# all layers, so this only detects wrong programs.
GRADIENT_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 2e-1, "fp16": 5e-2}


@dataclass(frozen=True)
class Pair:
    """Eager and compiled variants, called with mark(name), which they call at the end of each phase.

    prepare: runs before every pass, untimed.
    check_eager, check_compiled: return errors by name, raise WrongResult if one is too large; check_eager comes first.
    whole: name of the sample of a whole pass.
    """

    eager: Callable[[Mark], object]
    compiled: Callable[[Mark], object]
    prepare: Callable[[], object]
    check_eager: Callable[[], dict[str, float]]
    check_compiled: Callable[[], dict[str, float]]
    whole: str


def attention_pair(cell: Cell, backend: str) -> Pair:
    """Return forward and backward of attention without a head axis, all tensors (batch, seq_len, head_dim)."""
    level = cell.read(Attention)
    passes = Passes((level.batch, level.seq_len, level.head_dim), level.dtype, level.device)
    attend = compiled(scaled_dot_product_attention, backend)

    def errors(name: str, attend: Attend) -> dict[str, float]:
        return {f"{name}_{part}_error": error for part, error in passes.errors(attend, f"{name}: ").items()}

    return Pair(
        eager=partial(passes.both, scaled_dot_product_attention),
        compiled=partial(passes.both, attend),
        prepare=passes.forget_gradients,
        check_eager=partial(errors, "eager", scaled_dot_product_attention),
        check_compiled=partial(errors, "compiled", attend),
        whole="both",
    )


def model_pair(cell: Cell, backend: str) -> Pair:
    """Return a training step with the model eager and compiled; both share the optimizer."""
    step = build(cell.read(LanguageModel), cell.data_folder)
    step.make_optimizer()
    other = copy.copy(step)  # the same parameters and optimizer, another forward
    other.model = compiled(step.model, backend)
    return Pair(
        eager=step.full,
        compiled=other.full,
        prepare=step.zero_grad,
        check_eager=lambda: loss_check.check_loss(step),
        check_compiled=lambda: compare(step, other),
        whole="full_step",
    )


def compare(eager: Step, other: Step) -> dict[str, float]:
    """Return relative errors of the other's loss and some gradients against eager's; WrongResult beyond tolerance."""
    expected_loss, expected = _loss_and_gradients(eager, eager.model)
    loss, gradients = _loss_and_gradients(other, eager.model)
    losses = {"compiled: the loss": abs(loss / expected_loss - 1)}
    errors = {f"compiled: {name}": relative_error(gradients[name], expected[name]) for name in expected}
    return {
        "compiled_loss_error": require(losses, LOSS_TOLERANCE[eager.dtype], "eager"),
        "compiled_gradient_error": require(errors, GRADIENT_TOLERANCE[eager.dtype], "eager"),
    }


def _loss_and_gradients(step: Step, model: Model) -> tuple[float, dict[str, Tensor]]:
    """Return the batch's loss, and copies of one weight's gradient in the first and one in the last block."""
    model.zero_grad(set_to_none=True)
    loss = step.loss()
    loss.backward()
    last = len(model.blocks) - 1
    watched = ("blocks.0.attention.q.weight", f"blocks.{last}.feed_forward.w2.weight")
    gradients = {name: cast(Tensor, model.get_parameter(name).grad).clone() for name in watched}
    value = float(loss.detach())
    model.zero_grad(set_to_none=True)
    return value, gradients
