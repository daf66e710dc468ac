"""The machine's ceilings, each by the plainest work that has it as its bound.

Kinds of cell, told apart by the factor `workload`: product (a square product of random matrices), memory (a copy and a
triad within a device's memory), link (a copy from one GPU to another), transfer (between host and device) and disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from perfscribe.base.cells import Cell, Level, Measurement, grid
from perfscribe.instruments import precision

PRODUCT, MEMORY, LINK, TRANSFER, DISK = "product", "memory", "link", "transfer", "disk"
MIB = 2**20
# Costs are in seconds, at rates between a CPU's and a GPU's, and what making and checking the operands takes at least.
FLOP_PER_S, BYTES_PER_S, DISK_BYTES_PER_S, LEAST_S = 1e12, 5e10, 1e9, 0.2


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Products, memory, each ordered pair of GPUs, transfers, disk."""
    return [
        *(_product(levels) for levels in _grid(config, PRODUCT, ("device", "dtype", "matrix_size"))),
        *(_memory(levels) for levels in _grid(config, MEMORY, ("device", "operation", "size_mib"))),
        *(_link(levels) for levels in _pairs(config)),
        *(_transfer(levels) for levels in _grid(config, TRANSFER, ("operation", "host_memory", "size_mib"))),
        *(_disk(levels) for levels in _grid(config, DISK, ("operation", "size_mib"))),
    ]


def _grid(config: Mapping[str, Any], workload: str, names: tuple[str, ...]) -> Iterator[dict[str, Level]]:
    """The section's levels; what it leaves open is the experiment's."""
    section = config[workload]
    levels = {name: section[name] if name in section else config[name] for name in names}
    samples = [section.get("samples", config["samples"])]
    return iter(grid({"workload": [workload], **levels, "samples": samples}))


def _pairs(config: Mapping[str, Any]) -> Iterator[dict[str, Level]]:
    """Ordered pairs of the first GPUs: a link may carry less in one direction."""
    section = config[LINK]
    for size, (source, target) in itertools.product(
        section["size_mib"], itertools.permutations(range(section["gpus"]), 2)
    ):
        yield {
            "workload": LINK,
            "source_gpu": source,
            "target_gpu": target,
            "size_mib": size,
            "samples": config["samples"],
        }


def _product(levels: Mapping[str, Any]) -> Cell:
    requires = precision.requires(levels["device"], levels["dtype"])
    return Cell(levels, requires, cost=LEAST_S + 2 * levels["matrix_size"] ** 3 * levels["samples"] / FLOP_PER_S)


def _memory(levels: Mapping[str, Any]) -> Cell:
    return Cell(levels, ("cuda",) if levels["device"] == "cuda" else (), cost=_seconds(levels))


def _link(levels: Mapping[str, Any]) -> Cell:
    most = max(levels["source_gpu"], levels["target_gpu"]) + 1
    return Cell(levels, (f"cuda:{most}",), cost=_seconds(levels))


def _transfer(levels: Mapping[str, Any]) -> Cell:
    return Cell({**levels, "device": "cuda"}, ("cuda",), cost=_seconds(levels))


def _disk(levels: Mapping[str, Any]) -> Cell:
    requires = ("posix_fadvise",) if levels["operation"] == "cold read" else ()
    return Cell(levels, requires, cost=_seconds(levels, DISK_BYTES_PER_S))


def _seconds(levels: Mapping[str, Any], bytes_per_s: float = BYTES_PER_S) -> float:
    return LEAST_S + float(MIB * levels["size_mib"] * levels["samples"]) / bytes_per_s


def run(cell: Cell) -> Measurement:
    """Check the result of one kind of work, then time it.

    samples: product_ms, or time_ms. values: bytes, that a call moves by the convention of its kind; relative_error of
    a product; of a link what the machine says of it; of the disk its file system.
    """
    from perfscribe.experiments.calibration import copies, disk
    from perfscribe.experiments.flash_benchmarking.measure import product

    workload = cell["workload"]
    if workload == PRODUCT:
        precision.set_matmul_precision(cell["dtype"])
        return product(cell.factors)
    if workload == DISK:
        return disk.measure(cell.factors, cell.data_folder)
    return {MEMORY: copies.within, LINK: copies.between, TRANSFER: copies.from_host}[workload](cell.factors)
