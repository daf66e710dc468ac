"""The FSDP workshop's exercises with its custom model, the same one in every row.

Trainer's rows are the workshop's; the bare loop is their peer, of the same steps; the tuned one is what the same GPUs
can do: bf16, blocks compiled, a batch chosen by memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.training import launching

datasets, PRELOADED, run = squad_sets.datasets, launching.PRELOADED, launching.run


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Each loop with each number of ranks on one node; the workshop's own on several nodes."""
    return launching.over_ranks(
        {"model_name": "simple_gpt", **{name: config[name] for name in launching.SHAPE}}, config
    )
