"""Keys of experiments.communication with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import constant, experiment
from perfscribe.distributed import needs
from perfscribe.experiments.polaris.communication.measure import RANKS
from perfscribe.instruments import precision

LEVELS = experiment(
    "The Polaris homework's training on two ranks of a node against a rank on each of two nodes, profiled, interleaved",
    **shared.PROFILED,
    samples=constant(64, tiny=32, gpu=2048),  # of an epoch
    epochs=constant(1, gpu=2),
    trainings=constant(3, tiny=1, gpu=1),  # of each kind
)

SHOWN = Shown(
    tables=("polaris.communication", "polaris.communication_ranks", "polaris.communication_trainings"),
    figures=("polaris.communication_wait",),
)

TORCH_PROFILER = "torch_profiler"
MODEL = ("features", "layers", "d_ff", "batch", "source_length", "target_length", "dtype")
COMMON = (*MODEL, "wait", "warmup_steps", "active", "turns")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return per backend the cells of both placements by implementation, then one of a single rank."""
    planned = []
    steps = config["epochs"] * (config["samples"] // config["batch"])
    needed = sum(config[name] for name in ("wait", "warmup_steps", "active"))
    skip = "" if steps >= needed else f"{steps} steps of a training are fewer than the {needed} of a profile"
    for backend in config["backend"]:
        planned += [placements(config, backend, implementation) for implementation in config["implementation"]]
        factors = {"part": "profiler", "backend": backend, "world_size": 1, "implementation": "torch_ddp"}
        factors |= {"tool": TORCH_PROFILER, "batches": max(1, steps // config["epochs"]), "training_steps": steps}
        factors |= {name: config[name] for name in ("epochs", "trainings")}
        planned.append(replace(_cell(config, factors), skip=skip))
    return planned


def placements(config: Mapping[str, Any], backend: str, implementation: str) -> Cell:
    """Return the cell that measures both placements."""
    factors = {"part": "placements", "backend": backend, "world_size": RANKS, "implementation": implementation}
    return _cell(config, {**factors, "tool": TORCH_PROFILER, "batches": config["active"]})


def _cell(config: Mapping[str, Any], factors: dict[str, Any]) -> Cell:
    device, ranks = needs.DEVICES[factors["backend"]], factors["world_size"]
    requires = (*precision.requires(device, config["dtype"]), *needs.of_ranks(device, ranks))
    common = {"device": device, **{name: config[name] for name in COMMON}}
    return Cell({**factors, **common}, requires=requires, cost=float(ranks))
