"""Training of BLOOM and of the FSDP workshop's small model on one device, without FSDP, and their answers.

Each in two ways: labels that train the answer, and the workshop's own. Both models are measured here, since importing
Trainer takes seconds; custom_single_node shows the small one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.workshop_shapes import BLOOM, SimpleGptShape
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import model_weights, squad_sets
from perfscribe.instruments import precision
from perfscribe.training import knobs

DATA = ("max_length", "train_size", "eval_size", "new_tokens", "vocab_size")
TRAINING = tuple(name for name in knobs.NAMES if name not in ("device", "seed"))
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


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tokenised rows that all cells share, and the weights of bloom where they lie in a folder."""
    return squad_sets.datasets(config) | _weights(config)


def _weights(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    named = config["workshop"]["weights"]
    return {} if named in (None, squad_sets.HUB) else model_weights.datasets(named)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of model, device and way to label; ValueError for knobs that contradict."""
    knobs.of(config, device="cuda")
    name = squad_sets.dataset_name(config)
    varied = {factor: config[factor] for factor in ("model", "device", "labels")}
    return [_cell(levels, config, name) for levels in grid(varied)]


def _cell(levels: Mapping[str, Any], config: Mapping[str, Any], dataset: str) -> Cell:
    if levels["model"] == "bloom":
        named = config["workshop"]["weights"]
        weights = "random" if named is None else named if named == squad_sets.HUB else "folder"
        own = {"model_name": config["model_name"], "weights": weights}
        data = (dataset, *_weights(config))
        parameters = BLOOM[config["model_name"]].parameters
    else:
        own, data = {factor: config[factor] for factor in SIMPLE_GPT}, (dataset,)
        parameters = shape_of(own).parameters
    fixed = {factor: config[factor] for factor in (*TRAINING, *DATA, "generation_batch")}
    short = levels["model"] == "bloom" and levels["labels"] == "source"
    factors = {**levels, **own, **fixed, "rows": config["source_rows" if short else "train_size"]}
    dtype = "fp16" if config["fp16"] else "bf16" if config["bf16"] else "fp32"
    cost = float(parameters * factors["rows"] * config["num_epochs"] * config["max_length"])
    return Cell(factors, ("transformers", *precision.requires(str(levels["device"]), dtype)), cost, data)


def run(cell: Cell) -> Measurement:
    """Answers before, training, answers after; ValueError for knobs that contradict and losses that are no numbers."""
    from perfscribe.experiments.baseline.training import measured

    return measured(cell)
