"""The FSDP workshop's exercises with its custom model, the same one in every row.

Trainer's rows are the workshop's; the bare loop is their peer, of the same steps; the tuned one is what the same GPUs
can do: bf16, blocks compiled, a batch that fills the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import squad_sets
from perfscribe.training import launching

TUNED = "tuned"
SHAPE = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The workshop's rows."""
    return squad_sets.datasets(config)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Each loop with each number of ranks on one node; the workshop's own on several nodes."""
    dataset = squad_sets.dataset_name(config)
    shape = {name: config[name] for name in SHAPE}
    found = []
    for backend in config["backend"]:
        for loop in config["loop"]:
            own = config["tuned"]["world_size"] if loop == TUNED else config["world_size"]
            several = config["nodes"] if loop == config["loop"][0] else []
            for placed in launching.placements(own, several, config["ranks_per_node"]):
                levels = {**placed, "backend": backend, "loop": loop, "model_name": "simple_gpt", **shape}
                levels |= _tuned(config) if loop == TUNED else {}
                found.append(launching.cell(levels, config, dataset, _work(config, loop)))
    return found


def _tuned(config: Mapping[str, Any]) -> dict[str, Any]:
    """Levels of the tuned loop in place of the workshop's."""
    own = {name: level for name, level in config["tuned"].items() if name != "world_size"}
    return {**own, "grad_acc": 1, "num_epochs": 1}


def _work(config: Mapping[str, Any], loop: str) -> float:
    tokens = config["train_size"] * config["num_epochs"] * config["max_length"]
    shape = SimpleGptShape(**{name: config[name] for name in SHAPE})
    return float(step_flop(shape, tokens, config["max_length"])) * (2 if loop == TUNED else 1)


def start_early() -> None:
    """Start the process that ranks are forked from."""
    launching.start_early()


def run(cell: Cell) -> Measurement:
    """Train on the cell's ranks."""
    return launching.run(cell)
