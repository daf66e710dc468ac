"""Keys of experiments.optimizer_state_sharding with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, constants, experiment, whole
from perfscribe.data import tokens
from perfscribe.distributed import needs
from perfscribe.instruments import precision

LEVELS = experiment(
    "Training steps with AdamW's state on every rank, and divided among the ranks by our optimizer and by PyTorch's",
    **shared.DIVIDED_BATCH,
    dtype=choices(
        "tf32: fp32 with TF32 matrix products, as published runs have it",
        ["fp32", "tf32"],
        ["fp32"],
        gpu=["tf32", "fp32"],
    ),
    # Another batch, which write-ups give.
    further=constants(batch=constant([], gpu=[32]), world_size=constant([], gpu=[2]), dtype=constant([], gpu=["tf32"])),
    wrapper=constant("flat", gpu="naive"),  # how gradients are averaged: naive, one by one; flat, in one copy
    turns=whole("turns of the optimizers; an interval needs 6 or more", 1, 1000, 6, tiny=2, gpu=8),
    warmup_steps=constant(0),
    timed_steps=whole("whole steps that are timed in each turn", 1, 1000, 1, gpu=2),
    optimizer_steps=constant(1, gpu=3),  # of the optimizer alone, that are timed in each turn
)

SHOWN = Shown(
    tables=(
        "cs336.sharding_memory",
        "cs336.sharding_kinds",
        "cs336.sharding_saved",
        "cs336.sharding_times",
        "cs336.sharding_zero",
    ),
    figures=("cs336.sharding_memory_and_time",),
)


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return token batches for every batch and context length."""
    batches = [*config["batch"], *config["further"]["batch"]]
    return tokens.datasets(batches, config["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of the levels, then the further batches."""
    levels = {name: config[name] for name in ("backend", "world_size", "size", "seq_len", "batch", "dtype")}
    fixed = {name: config[name] for name in ("wrapper", "turns", "warmup_steps", "timed_steps", "optimizer_steps")}
    combinations = [*grid(levels)]
    combinations += [
        level
        for level in grid(levels | config["further"])
        if level not in combinations and level["dtype"] in config["dtype"]
    ]
    return [_cell({**level, **fixed}) for level in combinations]


def _cell(factors: dict[str, Any]) -> Cell:
    device, ranks, batch = needs.DEVICES[factors["backend"]], factors["world_size"], factors["batch"]
    shape = SIZES[factors["size"]]
    width = shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    # Every parameter is updated whatever the batch; ranks on a CPU share its cores.
    work = width * (factors["seq_len"] * batch / (ranks if device == "cuda" else 1) + 100 * ranks)
    return Cell(
        {"device": device, **factors},
        requires=(*precision.requires(device, factors["dtype"]), *needs.of_ranks(device, ranks)),
        cost=float(work),
        data=(tokens.dataset_name(batch, factors["seq_len"]),),
        skip="" if batch % ranks == 0 else f"a batch of {batch} cannot be divided among {ranks} ranks",
    )
