"""Measures training of BLOOM and of the FSDP workshop's small model on one device, without FSDP, and their answers.

Each with two kinds of labels: those that train the answer, and the workshop's. Both models are measured here because
importing Trainer takes seconds; tables custom_single_node_* show the small one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscribe.analytic.workshop_shapes import SimpleGptShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscribe.base.cells import Cell, Measurement

SIMPLE_GPT = ("model_vocab_size", "hidden_size", "num_layers", "num_heads", "ffn", "tied")
# Kind of `labels: source` per model: the workshop's two scripts differ.
SOURCE = {"bloom": "source", "simple_gpt": "source_prompt"}


def labels_of(factors: Mapping[str, Any]) -> str:
    """Return the data set's name of the cell's kind of labels."""
    return SOURCE[factors["model"]] if factors["labels"] == "source" else "answer"


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape:
    """Return the small model's shape; ValueError if its heads do not divide its width."""
    names = [name for name in SIMPLE_GPT if name != "model_vocab_size"]
    return SimpleGptShape(vocab_size=factors["model_vocab_size"], **{name: factors[name] for name in names})


def run(cell: Cell) -> Measurement:
    """Answer, train, answer again; ValueError for contradictory knobs and for losses that are not finite."""
    from perfscribe.experiments.fsdp.baseline.training import measured

    return measured(cell)
