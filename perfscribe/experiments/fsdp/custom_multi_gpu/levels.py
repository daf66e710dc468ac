"""Keys of experiments.custom_multi_gpu with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import constant, experiment, whole
from perfscribe.data import squad_sets
from perfscribe.training import launching

LEVELS = experiment(
    "The workshop's SimpleGPTModel on several GPUs, by Trainer, and tuned",
    rounds=shared.ROUNDS,
    **shared.RANKS,
    **shared.SIMPLE_GPT,
    num_layers=constant(3, tiny=1),
    loop=shared.LOOPS,
    wrap=shared.wrap(["FSDP1"]),
    **shared.training(
        shared.SIMPLE_GPT_VOCABULARY,
        12,
        batch_size=shared.BATCH_SIZE,
        grad_acc=whole("batches that are accumulated to an optimizer step", 1, 65_536, 2, tiny=1, gpu=1),
    ),
    tuned=shared.TUNED,
)

SHOWN = Shown(
    tables=("fsdp.custom_multi_gpu", "fsdp.custom_multi_node", "fsdp.custom_loops"), figures=("fsdp.custom_scaling",)
)


datasets = squad_sets.datasets


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return each loop with each number of ranks on one node, and the workshop's loop on several nodes."""
    return launching.over_ranks(
        {"model_name": "simple_gpt", **{name: config[name] for name in launching.SHAPE}}, config
    )
