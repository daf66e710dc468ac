"""Keys of experiments.preflight with their defaults, its cells, and what it shows."""

from collections.abc import Iterator, Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, constant, experiment, number, section, timeout, whole, wholes
from perfscribe.distributed import needs
from perfscribe.experiments.fsdp.preflight.measure import NCCL_CHOOSES

LEVELS = experiment(
    "All-reduce that is tried before trainings on several processes; these are skipped where it is too slow",
    timeout_s=timeout(180),
    backend=choices(
        "gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["gloo", "nccl"]
    ),
    world_size=wholes(
        "numbers of processes; a training on another number is tested on that", 2, 1024, [2, 3, 4], gpu=[2, 4, 8]
    ),
    nodes=wholes(
        "nodes of a cluster's job with processes on each; one machine skips them",
        2,
        1024,
        [2],
        gpu=[2, 4, 8],
        empty=True,
    ),
    ranks_per_node=constant([1]),  # as the workshop's job scripts test
    program=constant("auto"),  # one level only; kept because published records are matched by all their factors
    size_mib=section(
        "size of the fp32 array that is reduced, in MiB",
        gloo=number("with gloo", 0.001, 1_048_576, 16, tiny=1, gpu=64),
        nccl=number("with nccl", 0.001, 1_048_576, 4096),
    ),
    warmup=constant(5, tiny=2, gpu=20),  # calls before the timed ones
    iterations=whole("timed calls", 3, 100_000, 20, tiny=5, gpu=50),
    threshold_gb_per_s=section(
        "bus bandwidth below which trainings on as many processes are skipped; 0: none. 100 Mbit/s are 0.0125 GB/s",
        gloo=number("in GB/s, with gloo", 0, 100_000, 0.01),
        nccl=number("in GB/s, with nccl", 0, 100_000, 5),
    ),
    algorithm=choice(
        "NCCL_ALGO during the test alone: Ring, Tree, …; null: NCCL chooses",
        [None, "Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"],
        None,
    ),
)

SHOWN = Shown(tables=("fsdp.preflight",))

FIXED = ("program", "warmup", "iterations", "algorithm")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every backend and number of processes on one node, then the same on several nodes."""
    return [_cell({"backend": backend, **place}, config) for backend in config["backend"] for place in _places(config)]


def _places(config: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    for ranks in config["world_size"]:
        yield {"nodes": 1, "world_size": ranks}
    for ranks_per_node in config["ranks_per_node"]:
        for nodes in config["nodes"]:
            yield {"nodes": nodes, "world_size": nodes * ranks_per_node}


def _cell(level: Mapping[str, Any], config: Mapping[str, Any]) -> Cell:
    backend = str(level["backend"])
    limits = {name: config[name][backend] for name in ("size_mib", "threshold_gb_per_s")}
    factors = {**level, "device": needs.DEVICES[backend], **limits, **{name: config[name] for name in FIXED}}
    factors["algorithm"] = config["algorithm"] if backend == "nccl" and config["algorithm"] else NCCL_CHOOSES
    requires = needs.of_ranks(factors["device"], factors["world_size"], factors["nodes"])
    return Cell(factors, requires, cost=limits["size_mib"] * level["world_size"])
