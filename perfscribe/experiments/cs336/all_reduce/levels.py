"""Keys of experiments.all_reduce with their defaults, its cells, and what it shows."""

import itertools
from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.traffic import bus_factor, size_bytes
from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choice, choices, constant, constants, experiment, numbers, whole, wholes
from perfscribe.distributed import needs

LEVELS = experiment(
    "Collectives between the processes of one machine: all-reduce by backend, processes and size, and the others",
    megabyte=choice("bytes of an MB, 10^6 or 2^20; KB and GB follow it", ["10^6", "2^20"], "2^20"),
    backend=choices(
        "gloo: processes on the CPU | nccl: a GPU for each", ["gloo", "nccl"], ["gloo"], gpu=["gloo", "nccl"]
    ),
    world_size=wholes("processes", 2, 1024, [2, 4], tiny=[2], gpu=[2, 4, 6]),
    size_mb=numbers(
        "sizes of the fp32 array that is reduced, in MB",
        0.001,
        1_048_576,
        [1, 3, 10],
        tiny=[0.015625, 0.0625, 1],
        gpu=[1, 10, 100, 1024],
    ),
    # Smaller and larger messages, for latency and bandwidth.
    sweep=constants(
        operation=constant(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
        world_size=constant([2], gpu=[2, 4]),
        gloo_size_kb=constant([1, 32, 1024], tiny=[1, 8, 64], gpu=[1, 8, 64, 512]),
        nccl_size_kb=constant([], gpu=[1, 8, 64, 512, 4096, 32768, 262144, 1048576, 4194304]),
    ),
    # NVLink, shared memory of the host, TCP over the loopback interface.
    transports=constants(
        transport=constant([], gpu=["nvlink", "shm", "tcp"]),
        world_size=constant([], gpu=[2, 4]),
        size_mb=constant([], gpu=[1, 10, 100, 1024]),
    ),
    warmup_steps=whole("calls before the timed ones", 1, 1000, 5),
    samples=whole("timed calls", 3, 100_000, 20, tiny=5),
    limit_s=constant(0.4, tiny=0.1, gpu=2),  # of timed calls; fewer are timed then, but at least 5
)

SHOWN = Shown(
    tables=("cs336.all_reduce", "cs336.collectives"), figures=("cs336.all_reduce_by_size",), reads=("calibration",)
)

FACTORS = ("operation", "backend", "transport", "world_size", "size_mb")
FIXED = ("megabyte", "warmup_steps", "samples", "limit_s")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return the homework's grid, the size sweep of each operation, and forced transports, without duplicates."""
    sweep, forced = config["sweep"], config["transports"]
    kb_per_mb = {"10^6": 1000, "2^20": 1024}[config["megabyte"]]
    swept = {backend: [size_kb / kb_per_mb for size_kb in sweep[f"{backend}_size_kb"]] for backend in needs.DEVICES}
    by_level: dict[tuple[Any, ...], Cell] = {}
    for name, *levels in (
        ("sizes", ["all_reduce"], config["backend"], ["default"], config["world_size"], config["size_mb"]),
        *(
            ("sweep", sweep["operation"], [backend], ["default"], sweep["world_size"], swept[backend])
            for backend in needs.DEVICES
        ),
        ("transports", ["all_reduce"], ["nccl"], forced["transport"], forced["world_size"], forced["size_mb"]),
    ):
        for level in itertools.product(*levels):
            by_level.setdefault(level, _cell(name, dict(zip(FACTORS, level, strict=True)), config))
    return list(by_level.values())


def _cell(name: str, level: dict[str, Any], config: Mapping[str, Any]) -> Cell:
    device, size_mb = needs.DEVICES[level["backend"]], level["size_mb"]
    level["size_mb"] = int(size_mb) if size_mb == int(size_mb) else size_mb  # 1 and 1.0 are one level
    factors = {"grid": name, **level, "device": device, **{key: config[key] for key in FIXED}}
    moved = size_bytes(size_mb, config["megabyte"]) * level["world_size"]
    traffic = moved * bus_factor(level["operation"], level["world_size"])
    requires = needs.of_ranks(device, level["world_size"])
    return Cell(factors, requires, cost=1e6 + traffic * (0.05 if device == "cuda" else 1.0))
