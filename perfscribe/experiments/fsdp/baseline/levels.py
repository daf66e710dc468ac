"""Keys of experiments.baseline with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, devices, experiment, flag, number, whole
from perfscribe.data import model_weights, squad_sets
from perfscribe.experiments.fsdp.baseline.measure import SIMPLE_GPT, shape_of
from perfscribe.instruments import precision
from perfscribe.training import knobs

LEVELS = experiment(
    "Training on one device without FSDP: BLOOM, and the workshop's custom model, keys named as there",
    rounds=shared.ROUNDS,
    model=choices("bloom: model_name | simple_gpt: the workshop's custom model", ["bloom", "simple_gpt"]),
    device=devices(["cpu"], gpu=["cuda"]),
    labels=choices(
        "answer: after its prompt in one sequence, the prompt masked | source: the workshop's way", ["answer", "source"]
    ),
    model_name=shared.BLOOM,
    max_length=whole("tokens of a row", 16, 8192, 256, tiny=96, gpu=512),
    train_size=whole("rows to train on", 1, 100_000, 16, tiny=8, gpu=500),
    eval_size=constant(8, tiny=4, gpu=100),
    num_epochs=whole("passes over the rows", 1, 1000, 5, tiny=3),
    batch_size=whole("rows of a batch", 1, 1024, 1),
    grad_acc=whole("batches of an optimizer step", 1, 1024, 4),
    learning_rate=number("at the start; it falls linearly to nothing", 0, 1, 0.003, gpu=5e-05),
    weight_decay=constant(0.01),
    fp16=flag("autocast with a loss scaler; on a GPU alone", False, gpu=True),
    bf16=flag("autocast; neither of the two: fp32", False),
    gradient_checkpointing=flag("true: keep only each layer's input for backward", False),
    vocab_size=shared.BLOOM_VOCABULARY,
    # Of the custom model; the workshop's script takes its tokenizer's vocabulary whatever vocab_size is.
    model_vocab_size=constant(2000, tiny=512, gpu=250680),
    hidden_size=constant(64, tiny=16, gpu=1024),
    num_layers=constant(1),
    num_heads=constant(4, tiny=2, gpu=8),
    ffn=constant(256, tiny=32, gpu=8192),
    tied=constant(False),  # whether the head's matrix is the embedding's
    eval_strategy=constant("epoch"),
    save_strategy=shared.SAVE,
    logging_steps=constant(1, gpu=10),  # optimizer steps of one point of the training loss
    new_tokens=constant(8, tiny=4, gpu=50),  # most tokens of an answer
    generation_batch=constant(50),  # questions answered at once
)

SHOWN = Shown(
    tables=(
        "fsdp.baseline_losses",
        "fsdp.baseline_answers",
        "fsdp.custom_single_node_losses",
        "fsdp.custom_single_node_answers",
        "fsdp.labels",
        "fsdp.single_runs",
    ),
    figures=("fsdp.baseline_losses", "fsdp.custom_single_node_losses"),
)

DATA = ("max_length", "train_size", "eval_size", "new_tokens", "vocab_size")
TRAINING = tuple(name for name in knobs.NAMES if name not in ("device", "seed"))


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tokenised rows that all cells share, and bloom's weights if they are in a folder."""
    return squad_sets.datasets(config) | _weights(config)


def _weights(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    named = config["workshop"]["weights"]
    return {} if named in (None, squad_sets.HUB) else model_weights.datasets(named)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of model, device and labels; ValueError for contradictory knobs."""
    knobs.of(config, device="cuda")
    name = squad_sets.dataset_name(config)
    varied = {factor: config[factor] for factor in ("model", "device", "labels")}
    return [_cell(levels, config, name) for levels in grid(varied)]


def _cell(levels: Mapping[str, Any], config: Mapping[str, Any], dataset: str) -> Cell:
    if levels["model"] == "bloom":
        source = config["workshop"]["weights"]
        weights = "random" if source is None else source if source == squad_sets.HUB else "folder"
        model = {"model_name": config["model_name"], "weights": weights}
        data = (dataset, *_weights(config))
        parameters = BLOOM[config["model_name"]].parameters
    else:
        model, data = {factor: config[factor] for factor in SIMPLE_GPT}, (dataset,)
        parameters = shape_of(model).parameters
    fixed = {factor: config[factor] for factor in (*TRAINING, *DATA, "generation_batch")}
    factors = {**levels, **model, **fixed, "rows": config["train_size"]}
    dtype = "fp16" if config["fp16"] else "bf16" if config["bf16"] else "fp32"
    cost = float(parameters * factors["rows"] * config["num_epochs"] * config["max_length"])
    return Cell(factors, ("transformers", *precision.requires(str(levels["device"]), dtype)), cost, data)
