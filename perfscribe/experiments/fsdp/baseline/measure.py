"""Training of BLOOM and of the FSDP workshop's small model on one device, without FSDP, and their answers.

Each in two ways: labels that train the answer, and the workshop's own. Both models are measured here, since importing
Trainer takes seconds; custom_single_node shows the small one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscribe.analytic.workshop_shapes import SimpleGptShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscribe.base.cells import Cell, Measurement

SIMPLE_GPT = ("model_vocab_size", "hidden_size", "num_layers", "num_heads", "ffn", "tied")
# How `labels: source` labels: the workshop's two scripts differ.
SOURCE = {"bloom": "source", "simple_gpt": "source_prompt"}


def labels_of(factors: Mapping[str, Any]) -> str:
    """The name that the data set has for the cell's way to label."""
    return SOURCE[factors["model"]] if factors["labels"] == "source" else "answer"


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape:
    """The small model's shape; ValueError where its heads do not divide its width."""
    names = [name for name in SIMPLE_GPT if name != "model_vocab_size"]
    return SimpleGptShape(vocab_size=factors["model_vocab_size"], **{name: factors[name] for name in names})


def run(cell: Cell) -> Measurement:
    """Answers before, training, answers after; ValueError for knobs that contradict and losses that are no numbers."""
    from perfscribe.experiments.fsdp.baseline.training import measured

    return measured(cell)
