"""gradient_checkpointing of CS336 assignment 2: memory and time of passes that recompute blocks of layers.

On a GPU each cell is meant to run in a new process (isolation: cell), so that the allocator's cache contains no blocks
of other cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscribe.analytic.shapes import LanguageModel, Steps
from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    from torch import Tensor

    from perfscribe.models.training_step import Step

NONE = "none"
COMPARED_TOKENS = 128  # of one sequence, whose activations fit without recomputation


@dataclass(frozen=True)
class Recomputation:
    """Factor of a cell, next to those of its steps. block_size: layers, 0.5 or NONE."""

    block_size: float | str


def run(cell: Cell) -> Measurement:
    """Compare results with those of the model that keeps all, then take peaks and times.

    A pass without optimizer state needs least memory and comes first; its peak is kept if memory runs out later.
    """
    from perfscribe.base.partial import kept_on_failure
    from perfscribe.models.training_step import build, peak, time_full

    step = build(cell.read(LanguageModel), cell.data_folder)
    measurement = Measurement()
    with kept_on_failure(measurement):
        measurement.values["largest_relative_error"] = _set_up(step, cell.read(Recomputation).block_size)
        measurement.values |= peak("passes", step.forward_backward, step.device)
        step.zero_grad()
        step.make_optimizer()
        time_full(step, measurement, cell.read(Steps))
        step.zero_grad()
        measurement.values |= peak("full_step", step.full, step.device)
    return measurement


def _set_up(step: Step, block_size: float | str) -> float:
    """Set up recomputation; return the largest error by it, of the loss and of the outer layers' gradients."""
    from perfscribe.instruments.correctness import TOLERANCE, require_close
    from perfscribe.models.recomputed import recompute
    from perfscribe.models.transformer import next_token_loss

    weights = [*step.model.blocks[0].parameters(), *step.model.blocks[-1].parameters()]

    def results() -> list[Tensor | None]:
        step.zero_grad()
        with step.autocast():
            loss = next_token_loss(step.model, step.inputs[:1, :COMPARED_TOKENS], step.targets[:1, :COMPARED_TOKENS])
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in weights)]

    expected = [tensor for tensor in results() if tensor is not None]
    if block_size != NONE:
        recompute(step.model, float(block_size))
    pairs = zip(results(), expected, strict=True)
    step.zero_grad()
    what, where, allowed = "loss or gradient", f"block size {block_size}", TOLERANCE[step.dtype]
    return max(require_close(what, got, want, allowed, where) for got, want in pairs)
