"""Keys of experiments.optimizer_state_sharding with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, experiment, section, whole, wholes

LEVELS = experiment(
    "Training steps with AdamW's state on every rank, and divided among the ranks by our optimizer and by PyTorch's",
    **shared.DIVIDED_BATCH,
    dtype=choices(
        "tf32: fp32 with TF32 matrix products, as published runs have it",
        ["fp32", "tf32"],
        ["fp32"],
        gpu=["tf32", "fp32"],
    ),
    further=section(
        "further cells: another batch that write-ups give",
        batch=wholes("sequences in a batch", 1, 1_048_576, [], gpu=[32], empty=True),
        world_size=wholes("ranks", 2, 1024, [], gpu=[2], empty=True),
        dtype=choices("dtypes", ["fp32", "tf32"], [], gpu=["tf32"], empty=True),
    ),
    wrapper=choice(
        "how gradients are averaged: naive, one by one; flat, in one copy",
        ["naive", "flat"],
        "flat",
        gpu="naive",
    ),
    turns=whole("turns of the optimizers; an interval needs 6 or more", 1, 1000, 6, tiny=2, gpu=8),
    warmup_steps=whole("steps before the timed ones in each turn", 0, 1000, 0),
    timed_steps=whole("whole steps that are timed in each turn", 1, 1000, 1, gpu=2),
    optimizer_steps=whole("steps of the optimizer alone that are timed in each turn", 1, 1000, 1, gpu=3),
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
