"""Keys of experiments.checkpoints with their defaults, its cells, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import constant, experiment, pairs, whole
from perfscribe.data import squad_sets
from perfscribe.experiments.fsdp.checkpoints.measure import BARE, TRAINER
from perfscribe.training import launching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfscribe.base.cells import Cell

LEVELS = experiment(
    "A training divided by FSDP that is saved in parts, and resumed by another number of ranks",
    backend=shared.BACKEND,
    ranks=pairs(
        "pairs of numbers of ranks: the first trains and saves, the second resumes", 1, 1024, [[1, 2], [2, 1], [2, 4]]
    ),
    trainer_ranks=pairs(
        "the same pairs for Trainer's own checkpoints, which it divides on GPUs alone",
        1,
        1024,
        [[2, 2]],
        gpu=[[2, 2], [2, 4], [4, 2]],
        empty=True,
    ),
    rows_per_step=constant(4),  # of all ranks, a multiple of every number of ranks
    save_steps=constant(3),
    keep_checkpoints=constant(1),
    model_name=shared.BLOOM,
    labels=constant("answer"),
    train_size=whole("rows to train on", 1, 1_000_000, 32, tiny=20),
    eval_size=constant(8, tiny=4, gpu=16),
    max_length=constant(64, gpu=512),
    new_tokens=shared.NEW_TOKENS,
    vocab_size=shared.BLOOM_VOCABULARY,
    num_epochs=constant(1),
    batch_size=constant(1),
    **shared.ADAMW,
    dtype=constant("fp32"),
)

SHOWN = Shown(tables=("fsdp.checkpoints",))

datasets = squad_sets.datasets


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per loop and pair of numbers of ranks; skipped if these do not divide a step's rows."""
    dataset = squad_sets.dataset_name(config)
    return [
        _cell(loop, pair, backend, config, dataset)
        for backend in config["backend"]
        for loop, pairs in ((BARE, config["ranks"]), (TRAINER, config["trainer_ranks"]))
        for pair in pairs
    ]


def _cell(loop: str, pair: Sequence[int], backend: str, config: Mapping[str, Any], dataset: str) -> Cell:
    saved_by, resumed_by = pair
    levels: dict[str, Any] = {"world_size": max(saved_by, resumed_by), "saved_by": saved_by, "resumed_by": resumed_by}
    levels |= {"backend": backend, "loop": loop, "model_name": config["model_name"]}
    levels |= {name: config[name] for name in ("rows_per_step", "save_steps", "keep_checkpoints")}
    levels |= {"grad_acc": 1, "logging_steps": 1, "wrap": "FSDP2"}
    rows, batch = config["rows_per_step"], config["batch_size"]
    uneven = [ranks for ranks in (saved_by, resumed_by) if rows % (ranks * batch)]
    skip = f"{rows} rows a step cannot be divided among {uneven[0]} ranks with {batch} at once" if uneven else ""
    return launching.cell(levels, config, dataset, launching.work(levels, config), skip)
