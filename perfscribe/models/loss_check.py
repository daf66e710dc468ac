"""Check of a model before it is timed: its loss on a short prefix against float64."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from perfscribe.instruments.correctness import loss_error
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.models.training_step import Step

CHECKED_TOKENS = 32


def check_loss(step: Step, compiled: torch.nn.Module | None = None) -> dict[str, float]:
    """Relative error of the loss on a prefix of the first sequence; WrongResult beyond the dtype's tolerance.

    compiled: module to call instead of the step's model; must share its parameters.
    """
    inputs, targets = step.inputs[:1, :CHECKED_TOKENS], step.targets[:1, :CHECKED_TOKENS]
    with torch.no_grad():
        with step.autocast():
            got = float(next_token_loss(compiled or step.model, inputs, targets))
        expected = float(float64_loss(step.model, inputs, targets))
    return loss_error(got, expected, step.dtype)


def float64_loss(model: Model, inputs: Tensor, targets: Tensor) -> Tensor:
    """next_token_loss of inputs and targets (B, S) in float64; a scalar.

    Each part is converted only when it is used, so that at most one block's weights are held twice.
    """

    def widened(part: torch.nn.Module) -> torch.nn.Module:
        return copy.deepcopy(part).double()

    mask = model.causal_mask[: inputs.shape[-1], : inputs.shape[-1]]  # (S, S)
    x = model.embedding(inputs).double()  # (B, S, D)
    for block in model.blocks:
        x = widened(block)(x, model.rotary, mask)
    logits = widened(model.head)(widened(model.norm)(x))  # (B, S, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
