"""Keys of experiments.weak_scaling with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.weak_scaling import Setup, setups
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, experiment, whole, wholes
from perfscribe.data import squad_sets
from perfscribe.training import launching

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

SHOWN = Shown(tables=("fsdp.weak_setup", "fsdp.weak_scaling"), figures=("fsdp.weak_scaling",))


datasets = squad_sets.datasets


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per distinct training; `variants` names the rows that it represents."""
    dataset = squad_sets.dataset_name(config)
    shape = SimpleGptShape(config["vocab_size"], config["hidden_size"], 1, config["num_heads"], config["ffn"])
    lists = (config[name] for name in ("world_size", "layers", "batch"))
    by_training: dict[tuple[int, int, int], list[Setup]] = {}
    for setup in setups(shape, config["max_length"], *lists):
        by_training.setdefault((setup.world_size, setup.shape.num_layers, setup.batch), []).append(setup)
    return [_cell(rows, backend, config, dataset) for backend in config["backend"] for rows in by_training.values()]


def _cell(rows: list[Setup], backend: str, config: Mapping[str, Any], dataset: str) -> Cell:
    setup = rows[0]
    levels = {
        "variants": "; ".join(row.variant for row in rows),
        "nodes": nodes_for(setup.world_size, config["ranks_per_node"]),
        "world_size": setup.world_size,
        "backend": backend,
        "loop": config["loop"],
        "wrap": config["wrap"],
        "model_name": "simple_gpt",
        **{name: getattr(setup.shape, name) for name in launching.SHAPE},
        "batch_size": setup.batch,
    }
    steps = config["train_size"] * config["num_epochs"] / setup.total_batch
    return launching.cell(levels, config, dataset, steps * setup.flop_per_gpu * setup.world_size)


def nodes_for(world_size: int, most: int) -> int:
    """Return the fewest nodes that divide the ranks evenly, with at most `most` ranks on each."""
    return next(nodes for nodes in range(1, world_size + 1) if world_size % nodes == 0 and world_size // nodes <= most)
