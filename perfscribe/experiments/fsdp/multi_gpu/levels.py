"""Keys of experiments.multi_gpu with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import experiment, whole
from perfscribe.data import squad_sets
from perfscribe.training import launching

LEVELS = experiment(
    "BLOOM on several GPUs of one node, and on one GPU of each of several nodes; by Trainer, and tuned",
    rounds=shared.ROUNDS,
    **shared.RANKS,
    model_name=shared.BLOOM,
    loop=shared.LOOPS,
    wrap=shared.wrap(["FSDP1", "FSDP2"]),
    **shared.training(
        shared.BLOOM_VOCABULARY,
        12,
        batch_size=shared.BATCH_SIZE,
        grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=4),
    ),
    tuned=shared.TUNED,
)

SHOWN = Shown(tables=("fsdp.multi_gpu", "fsdp.multi_node"), figures=("fsdp.multi_gpu",))


datasets = squad_sets.datasets


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return all ranks on one node, by the workshop's Trainer and tuned, then on several nodes of a cluster."""
    return launching.over_ranks({"model_name": config["model_name"]}, config)
