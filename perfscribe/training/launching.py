"""Cells (points of an experiment) that train on one or more ranks: make them, launch ranks, merge results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import BLOOM, BloomShape, SimpleGptShape
from perfscribe.base.cells import Cell, Measurement, read
from perfscribe.data import squad_sets
from perfscribe.distributed import needs
from perfscribe.instruments import precision
from perfscribe.instruments.timing import longest

KNOBS = (
    *("batch_size", "grad_acc", "num_epochs", "learning_rate", "weight_decay", "dtype", "logging_steps"),
    "save_strategy",
)
DATA = ("train_size", "eval_size", "max_length", "labels")
SHAPE = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")
# Below the worker's limit (timeout_s), so that the launch can name the rank that hangs.
LAUNCH_TIMEOUT_S = 540.0
HOST_CLOCK = "host clock + synchronise"
MODULE = "perfscribe.training.preload"
PRELOADED = (*needs.PRELOADED, MODULE)
BLOOMS_CODE = "transformers.models.bloom.modeling_bloom"
RANDOM, TUNED = "random", "tuned"


@dataclass(frozen=True)
class Training:
    """Factors that a rank reads next to its knobs; those with a default are of the tuned loop."""

    model_name: str
    weights: str
    dtype: str
    labels: str
    loop: str
    wrap: str
    compiled: bool = False
    memory_percent: float = 0
    steps: int = 0


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape | BloomShape:
    """Shape of a cell's model."""
    return BLOOM.get(factors["model_name"]) or read(factors, SimpleGptShape)


def wrap_of(levels: Mapping[str, Any]) -> str:
    """Wrapper to use: none on one rank, as in the workshop, except for the tuned loop."""
    if levels["world_size"] == 1 and levels["loop"] != TUNED:
        return "none"
    return str(levels["wrap"]) if levels["loop"] == "trainer" else "FSDP2"


def ways(loop: str, wraps: Sequence[str]) -> list[tuple[str, bool]]:
    """Wrappers for a loop, each with whether it is the first; only the first is run on one rank and on several nodes.

    Only Trainer uses FSDP1.
    """
    return [(wrap, place == 0) for place, wrap in enumerate(wraps if loop == "trainer" else ["FSDP2"])]


def placements(world_sizes: Sequence[int], nodes: Sequence[int], each: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the factors of rank placement: world_sizes on one node; then, for each ranks per node, node counts."""
    for ranks in world_sizes:
        yield {"placement": "one node", "nodes": 1, "world_size": ranks}
    for ranks_per_node in each:
        name = "one rank a node" if ranks_per_node == 1 else f"{ranks_per_node} ranks a node"
        for count in nodes:
            yield {"placement": name, "nodes": count, "world_size": count * ranks_per_node}


def over_ranks(model: Mapping[str, Any], config: Mapping[str, Any]) -> list[Cell]:
    """Make a cell for each loop and number of ranks on one node; for the first loop also on several nodes.

    model: its factors. The config's `tuned` replaces the workshop's settings in the tuned loop.
    """
    dataset = squad_sets.dataset_name(config)
    tuned = {name: level for name, level in config["tuned"].items() if name != "world_size"}
    every = [(loop, *way) for loop in config["loop"] for way in ways(loop, config["wrap"])]
    found = []
    for backend, (loop, wrap, first) in product(config["backend"], every):
        own = [n for n in (config["tuned"] if loop == TUNED else config)["world_size"] if first or n > 1]
        several = config["nodes"] if first and loop == config["loop"][0] else []
        for placed in placements(own, several, config["ranks_per_node"]):
            levels = {**placed, "backend": backend, "loop": loop, **model, "wrap": wrap}
            of_all = work(levels, config)
            if loop == TUNED:
                levels |= {**tuned, "grad_acc": 1, "num_epochs": 1}
                of_all *= 2
            found.append(cell(levels, config, dataset, of_all))
    return found


def cell(levels: Mapping[str, Any], config: Mapping[str, Any], dataset: str, work: float, skip: str = "") -> Cell:
    """Make a cell of levels (backend, world_size, loop, model_name; Trainer: wrap; nodes, default 1) and the config.

    work: FLOP of the whole training, for ordering cells and estimating time.
    """
    own = {name: config[name] for name in (*DATA, *KNOBS) if name in config and name not in levels}
    device, ranks = needs.DEVICES[levels["backend"]], levels["world_size"]
    factors = {**levels, "device": device, "wrap": wrap_of(levels), **own}
    if levels["loop"] != "trainer" and "save_strategy" in own:
        factors |= {"save_strategy": "no"}
    # The custom model has only random weights.
    factors["weights"] = (levels["model_name"] in BLOOM and config["workshop"]["weights"]) or RANDOM
    requires = [*precision.requires(device, factors["dtype"]), "transformers"]
    requires += needs.of_ranks(device, ranks, levels.get("nodes", 1))
    return Cell(factors, requires=tuple(dict.fromkeys(requires)), cost=work, data=(dataset,), skip=skip)


def work(factors: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """FLOP of training this model on all rows."""
    tokens = config["train_size"] * config["num_epochs"] * config["max_length"]
    return float(step_flop(shape_of(factors), tokens, config["max_length"]))


def run(of: Cell) -> Measurement:
    """Launch the ranks and combine their results into one measurement."""
    from perfscribe.distributed.launch import Ranks, launch
    from perfscribe.training.on_ranks import on_rank

    ranks = launch(
        on_rank,
        {"factors": dict(of.factors), "data_folder": of.data_folder, "dataset": of.data[0]},
        timeout_s=LAUNCH_TIMEOUT_S,
        **vars(of.read(Ranks)),
    )
    return combine(ranks)


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine ranks: the longest time of each optimizer step; other figures of rank 0, equal on all by collectives.

    local_share and units: maximum over ranks; hosts: number of hosts.
    """
    first = ranks[0]
    values = dict(first["values"]) | {
        name: max(rank["values"][name] for rank in ranks) for name in ("local_share", "units")
    }
    samples, warmup = (longest([rank[part]["step_ms"] for rank in ranks]) for part in ("samples", "warmup"))
    return Measurement(
        samples={"step_ms": samples},
        warmup={"step_ms": warmup},
        values=values | {"hosts": len({rank["host"] for rank in ranks})},
        series={name: list(held) for name, held in first["series"].items()},
        timers={"step_ms": HOST_CLOCK},
        timed_s=sum(samples) / 1e3,
        warmup_s=sum(warmup) / 1e3,
    )
