"""Cells of trainings on several ranks: what they have in common, how one is run, how its ranks are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import BLOOM, BloomShape, SimpleGptShape
from perfscribe.base.cells import Cell, Measurement
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
# Below the worker's own limit (timeout_s), so that the rank that hangs is named.
LAUNCH_TIMEOUT_S = 540.0
HOST_CLOCK = "host clock + synchronise"
MODULE = "perfscribe.training.preload"
PRELOADED = (*needs.PRELOADED, MODULE)
BLOOMS_CODE = "transformers.models.bloom.modeling_bloom"
RANDOM, TUNED = "random", "tuned"


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape | BloomShape:
    """The model of a cell."""
    return BLOOM.get(factors["model_name"]) or SimpleGptShape(**{name: factors[name] for name in SHAPE})


def wrap_of(levels: Mapping[str, Any]) -> str:
    """What is to divide the model: nothing on one rank, as the workshop trains there, but for the tuned loop."""
    if levels["world_size"] == 1 and levels["loop"] != TUNED:
        return "none"
    return str(levels["wrap"]) if levels["loop"] == "trainer" else "FSDP2"


def ways(loop: str, wraps: Sequence[str]) -> list[tuple[str, bool]]:
    """What divides a loop's model, each with whether it is the first, which has the rows of one rank and of nodes.

    FSDP1 is Trainer's alone.
    """
    return [(wrap, place == 0) for place, wrap in enumerate(wraps if loop == "trainer" else ["FSDP2"])]


def placements(world_sizes: Sequence[int], nodes: Sequence[int], each: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Levels of where ranks are: so many on one node; then, by ranks on each, on so many nodes."""
    for ranks in world_sizes:
        yield {"placement": "one node", "nodes": 1, "world_size": ranks}
    for ranks_per_node in each:
        name = "one rank a node" if ranks_per_node == 1 else f"{ranks_per_node} ranks a node"
        for count in nodes:
            yield {"placement": name, "nodes": count, "world_size": count * ranks_per_node}


def over_ranks(model: Mapping[str, Any], config: Mapping[str, Any]) -> list[Cell]:
    """A cell for each loop with each number of ranks on one node; with the first loop also on several nodes.

    model: its factors. The config's `tuned` stands in place of the workshop's settings in that loop.
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
    """A cell of these levels (backend, world_size and loop among them; nodes, else 1) and the config's knobs and rows.

    work: FLOP of the whole training, for the order and the time left.
    """
    own = {name: config[name] for name in (*DATA, *KNOBS) if name in config and name not in levels}
    device, ranks = needs.DEVICES[levels["backend"]], levels["world_size"]
    factors = {**levels, "device": device, "wrap": wrap_of(levels), **own}
    if levels["loop"] != "trainer" and "save_strategy" in own:
        factors |= {"save_strategy": "no"}
    # The custom model has no weights but random ones.
    factors["weights"] = (levels["model_name"] in BLOOM and config["workshop"]["weights"]) or RANDOM
    requires = [*precision.requires(device, factors["dtype"]), "transformers"]
    requires += needs.of_ranks(device, ranks, levels.get("nodes", 1))
    return Cell(factors, requires=tuple(dict.fromkeys(requires)), cost=work, data=(dataset,), skip=skip)


def work(factors: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """FLOP of a training of this model on all rows."""
    tokens = config["train_size"] * config["num_epochs"] * config["max_length"]
    return float(step_flop(shape_of(factors), tokens, config["max_length"]))


def run(of: Cell) -> Measurement:
    """Launch the ranks, and make one measurement of what they say."""
    from perfscribe.distributed.launch import launch
    from perfscribe.training.on_ranks import on_rank

    ranks = launch(
        on_rank,
        {"factors": dict(of.factors), "data_folder": of.data_folder, "dataset": of.data[0]},
        world_size=of["world_size"],
        nodes=int(of.factors.get("nodes") or 1),
        timeout_s=LAUNCH_TIMEOUT_S,
        backend=of["backend"],
    )
    return combine(ranks)


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Of each optimizer step the longest time of any rank; figures of the first rank, which the collectives made alike.

    The share of the parameters that a rank keeps is the largest of any; hosts: how many the ranks have been on.
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
