"""Keys of experiments.calibration with their defaults, its cells, and what it shows."""

import itertools
from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, Level, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, constant, constants, devices, experiment, timeout
from perfscribe.experiments.cs336.calibration.host import AUTOGRAD, LAUNCH, ONE_THREAD, PYTHON
from perfscribe.experiments.cs336.calibration.measure import DISK, HOST, LINK, MEMORY, MIB, PRODUCT, TRANSFER
from perfscribe.instruments import precision

LEVELS = experiment(
    "Ceilings of the machine: products, memory, links between GPUs, host to device, disk, launches",
    timeout_s=timeout(60, gpu=600),
    alone=alone("which would use the same memory, links and disk"),
    device=devices(["cpu"], gpu=["cuda"]),
    samples=constant(5, tiny=3, gpu=10),  # of long products fewer, but at least 3
    product=constants(
        matrix_size=constant([512, 1024, 2048], tiny=[128, 256], gpu=[4096, 8192, 16384]),
        dtype=constant(["fp32", "bf16"], gpu=["fp32", "tf32", "bf16", "fp16"]),
    ),
    memory=constants(
        operation=constant(["copy", "triad"]),  # triad: a = b + s c
        size_mib=constant([16, 256], tiny=[1, 16], gpu=[256, 1024, 4096]),  # of a tensor; the largest is the ceiling
    ),
    link=constants(gpus=constant(4), size_mib=constant([1024])),
    transfer=constants(
        operation=constant(["host to device", "device to host"]),
        host_memory=constant(["pinned", "pageable"]),
        size_mib=constant([256]),
    ),
    disk=constants(
        operation=constant(["write", "cold read"]),  # write: with fsync; cold read: dropped from the page cache before
        size_mib=constant([64], tiny=[8], gpu=[512]),
        samples=constant(3),
    ),
)

# The roofline shows results of the experiments in `reads`.
SHOWN = Shown(
    tables=("cs336.ceilings_products", "cs336.ceilings_bandwidths", "cs336.ceilings_host", "cs336.roofline"),
    reads=("attention", "end_to_end", "flash_benchmarking"),
)

HOST_SAMPLES = 10
HOST_OPERATIONS = {"cpu": (PYTHON, LAUNCH, AUTOGRAD), "cuda": (LAUNCH, AUTOGRAD, ONE_THREAD)}

# Costs are in seconds, at rates between a CPU's and a GPU's, plus a minimum for making and checking the operands.
FLOP_PER_S, BYTES_PER_S, DISK_BYTES_PER_S, LEAST_S = 1e12, 5e10, 1e9, 0.2


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return products, memory, ordered pairs of GPUs (a link may be slower in one direction), transfers, disk, host."""

    def levels(workload: str, *names: str) -> list[dict[str, Level]]:
        """Return the section's levels, completed by the experiment's."""
        section = {**config, **config[workload]}
        listed = {name: section[name] for name in names}
        return list(grid({"workload": [workload], **listed, "samples": [section["samples"]]}))

    found = []
    for one in levels(PRODUCT, "device", "dtype", "matrix_size"):
        work_s = 2 * one["matrix_size"] ** 3 * one["samples"] / FLOP_PER_S  # type: ignore[operator]
        found.append(Cell(one, precision.requires(str(one["device"]), str(one["dtype"])), LEAST_S + work_s))
    for one in levels(MEMORY, "device", "operation", "size_mib"):
        found.append(Cell(one, ("cuda",) if one["device"] == "cuda" else (), _cost(one)))
    for size_mib, pair in itertools.product(
        config[LINK]["size_mib"], itertools.permutations(range(config[LINK]["gpus"]), 2)
    ):
        gpus = {"source_gpu": pair[0], "target_gpu": pair[1]}
        one = {"workload": LINK, **gpus, "size_mib": size_mib, "samples": config["samples"]}
        found.append(Cell(one, (f"cuda:{max(pair) + 1}",), _cost(one)))
    for one in levels(TRANSFER, "operation", "host_memory", "size_mib"):
        found.append(Cell({**one, "device": "cuda"}, ("cuda",), _cost(one)))
    for one in levels(DISK, "operation", "size_mib"):
        requires = ("posix_fadvise",) if one["operation"] == "cold read" else ()
        found.append(Cell(one, requires, _cost(one, DISK_BYTES_PER_S)))
    for device in dict.fromkeys(["cpu", *config["device"]]):
        for operation in HOST_OPERATIONS[device]:
            one = {"workload": HOST, "operation": operation, "device": device, "samples": HOST_SAMPLES}
            found.append(Cell(one, ("cuda",) if device == "cuda" else (), LEAST_S))
    return found


def _cost(levels: Mapping[str, Any], bytes_per_s: float = BYTES_PER_S) -> float:
    return LEAST_S + float(MIB * levels["size_mib"] * levels["samples"]) / bytes_per_s
