"""Measures training of BLOOM and of the FSDP workshop's small model on one device, without FSDP, and their answers.

Each with two kinds of labels: those that train the answer, and the workshop's. Both models are measured here because
importing Trainer takes seconds; tables custom_single_node_* show the small one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base.cells import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscribe.base.cells import Cell, Measurement

SIMPLE_GPT = ("model_vocab_size", "hidden_size", "num_layers", "num_heads", "ffn", "tied")
# Kind of `labels: source` per model: the workshop's two scripts differ.
SOURCE = {"bloom": "source", "simple_gpt": "source_prompt"}


@dataclass(frozen=True)
class Baseline:
    """Factors of a cell next to its knobs and the small model's sizes; those with a default are BLOOM's."""

    model: str
    device: str
    labels: str
    rows: int
    fp16: bool
    new_tokens: int
    generation_batch: int
    model_name: str = ""
    weights: str = "random"


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape:
    """Return the small model's shape; ValueError if its heads do not divide its width."""
    return read({**factors, "vocab_size": factors["model_vocab_size"]}, SimpleGptShape)


def run(cell: Cell) -> Measurement:
    """Answer, train, answer again; ValueError for contradictory knobs and for losses that are not finite."""
    from perfscribe.experiments.fsdp.baseline.training import measured

    return measured(cell)
