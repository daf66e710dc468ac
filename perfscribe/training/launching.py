"""Cells of trainings on several ranks: what they have in common, how one is run, how its ranks are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed.needs import of_ranks
from perfscribe.instruments import precision

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
KNOBS = ("batch_size", "grad_acc", "num_epochs", "learning_rate", "weight_decay", "dtype", "logging_steps")
DATA = ("train_size", "eval_size", "max_length", "labels")
# Below the worker's own limit (timeout_s), so that the rank that hangs is named.
LAUNCH_TIMEOUT_S = 540.0
HOST_CLOCK = "host clock + synchronise"
MODULE = "perfscribe.training.preload"
RANDOM = "random"
ONE_NODE, ONE_EACH = "one node", "one rank a node"
LARGEST = ("local_share", "units")


def wrap_of(loop: str, world_size: int) -> str:
    """What is to divide the model: nothing on one rank, as the workshop trains there, but for the tuned loop."""
    return "none" if world_size == 1 and loop != "tuned" else "FSDP2"


def placements(world_sizes: Sequence[int], nodes: Sequence[int], each: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Levels of where ranks are: so many on one node; then, by ranks on each, on so many nodes."""
    for ranks in world_sizes:
        yield {"placement": ONE_NODE, "nodes": 1, "world_size": ranks}
    for ranks_per_node in each:
        name = ONE_EACH if ranks_per_node == 1 else f"{ranks_per_node} ranks a node"
        for count in nodes:
            yield {"placement": name, "nodes": count, "world_size": count * ranks_per_node}


def cell(levels: Mapping[str, Any], config: Mapping[str, Any], dataset: str, work: float, skip: str = "") -> Cell:
    """A cell of these levels (backend, world_size and loop among them; nodes, else 1) and the config's knobs and rows.

    work: FLOP of the whole training, for the order and the time left.
    """
    own = {name: config[name] for name in (*DATA, *KNOBS) if name not in levels}
    device, ranks = DEVICES[levels["backend"]], levels["world_size"]
    factors = {**levels, "device": device, "wrap": wrap_of(levels["loop"], ranks), **own}
    factors["weights"] = _weights(levels["model_name"], config)
    needs = [*precision.requires(device, factors["dtype"]), "transformers"]
    needs += of_ranks(device, ranks, levels.get("nodes", 1))
    return Cell(factors, requires=tuple(dict.fromkeys(needs)), cost=work, data=(dataset,), skip=skip)


def _weights(model_name: str, config: Mapping[str, Any]) -> str:
    """Where the weights are from; the custom model has none but random ones."""
    return (config["workshop"]["weights"] or RANDOM) if model_name in BLOOM else RANDOM


def start_early(bloom: bool = False) -> None:
    """Start the process that ranks are forked from, so that it imports while the measuring process does."""
    from perfscribe.distributed.fork_server import PRELOADED, SERVER

    SERVER.start((*PRELOADED, MODULE + "_bloom" if bloom else MODULE))


def run(of: Cell) -> Measurement:
    """Launch the ranks, and make one measurement of what they say."""
    import random

    from perfscribe.distributed.launch import launch
    from perfscribe.training.on_ranks import on_rank

    launched = launch(
        on_rank,
        {"factors": dict(of.factors), "data_folder": of.data_folder, "dataset": of.data[0]},
        world_size=of["world_size"],
        nodes=int(of.factors.get("nodes") or 1),
        timeout_s=LAUNCH_TIMEOUT_S,
        backend=of["backend"],
        device=of["device"],
        seed=random.getrandbits(31),  # of the cell's own seed
    )
    return combine(launched.results)


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Of each optimizer step the longest time of any rank; figures of the first rank, which the collectives made alike.

    The share of the parameters that a rank keeps is the largest of any; hosts: how many the ranks have been on.
    """
    first = ranks[0]
    figures = {name: max(rank["values"][name] for rank in ranks) for name in LARGEST}
    figures["hosts"] = len({rank["host"] for rank in ranks})
    measurement = Measurement(
        samples={name: _longest([rank["samples"][name] for rank in ranks]) for name in first["samples"]},
        warmup={name: _longest([rank["warmup"][name] for rank in ranks]) for name in first["warmup"]},
        values=dict(first["values"]) | figures,
        series={name: list(held) for name, held in first["series"].items()},
        timers=dict.fromkeys(first["samples"], HOST_CLOCK),
    )
    measurement.timed_s = sum(measurement.samples["step_ms"]) / 1e3
    measurement.warmup_s = sum(measurement.warmup["step_ms"]) / 1e3
    return measurement


def _longest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    return [max(step) for step in zip(*by_rank, strict=True)]
