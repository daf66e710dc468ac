"""Keys of experiments.weak_scaling with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, experiment, whole, wholes

LEVELS = experiment(
    "The workshop's weak scaling, and two variants of it whose work a GPU stays the same",
    rounds=shared.ROUNDS,
    backend=shared.BACKEND,
    world_size=wholes("ranks, in the order of layers and batch", 1, 1024, [1, 2], gpu=[2, 4, 8, 16]),
    ranks_per_node=whole("ranks on a node at most; more are on several nodes of a cluster's job", 1, 1024, 8),
    layers=wholes("layers of the model at each number of ranks", 1, 1000, [1, 2], gpu=[3, 6, 12, 24], repeats=True),
    batch=wholes(
        "rows of each rank at once, at each number of ranks",
        1,
        65_536,
        [4, 2],
        tiny=[2, 1],
        gpu=[8, 4, 2, 1],
        repeats=True,
    ),
    **shared.SIMPLE_GPT,
    loop=choice(
        "trainer: transformers.Trainer, which shards on GPUs alone | bare loop: the same steps around fully_shard",
        ["trainer", "bare loop"],
        "bare loop",
        gpu="trainer",
    ),
    wrap=choice(
        "FSDP1: the whole model is one unit | FSDP2: each block is one", ["FSDP1", "FSDP2"], "FSDP2", gpu="FSDP1"
    ),
    **shared.training(
        shared.SIMPLE_GPT_VOCABULARY,
        8,
        grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 1),
    ),
)

SHOWN = Shown(
    tables=("fsdp.weak_setup", "fsdp.weak_scaling"),
    figures=("fsdp.weak_scaling",),
)
