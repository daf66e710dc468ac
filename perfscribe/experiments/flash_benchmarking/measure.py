"""flash_benchmarking of CS336 assignment 2: forward, backward and both of attention, by every implementation.

Three kinds of cell, told apart by the factor `workload`: grid (the homework's problem), leaderboard (the course's
competition) and matmul (a large product, whose rate is the ceiling that the others are compared with).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfscribe.attention import backends
from perfscribe.base.cells import Cell, Level, Measurement, grid
from perfscribe.instruments import precision

CAUSAL = True
# A pass over the N x N matrix costs eager attention about as much as so many columns of a product.
COLUMNS_OF_A_PASS = 64


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Products; length x head dimension x dtype x implementation; the smaller grids; the leaderboard's problem."""
    attention: list[dict[str, Level]] = []
    for levels in _attention_levels(config):
        if levels not in attention:
            attention.append(levels)
    products = grid(
        {
            "workload": ["matmul"],
            "device": config["device"],
            "dtype": config["matmul"]["dtype"],
            "matrix_size": config["matmul"]["matrix_size"],
            "samples": [config["samples"]],
        }
    )
    return [_product_cell(levels) for levels in products] + [_attention_cell(levels) for levels in attention]


def _attention_levels(config: Mapping[str, Any]) -> Iterator[dict[str, Level]]:
    everywhere = {name: config[name] for name in ("seq_len", "head_dim", "dtype", "implementation")}
    tf32 = {**config["tf32"], "dtype": ["tf32"]}
    ieee = {**config["ieee"], "dtype": ["fp32"]}
    for levels in (everywhere, config["sub_grid"], tf32, ieee):
        yield from _ordered(config, "grid", {**levels, "heads": 1})
    yield from _ordered(config, "leaderboard", config["leaderboard"])


def _ordered(config: Mapping[str, Any], workload: str, levels: Mapping[str, Any]) -> Iterator[dict[str, Level]]:
    """The combinations of these levels, the implementation varying fastest."""
    listed = {name: level if isinstance(level, list) else [level] for name, level in levels.items()}
    return iter(
        grid(
            {
                "workload": [workload],
                "device": config["device"],
                "seq_len": listed["seq_len"],
                "head_dim": listed["head_dim"],
                "dtype": listed["dtype"],
                "batch": [config["batch"]],
                "heads": listed["heads"],
                "causal": [CAUSAL],
                "implementation": listed["implementation"],
                "samples": [config["samples"]],
            }
        )
    )


def _product_cell(levels: Mapping[str, Any]) -> Cell:
    requires = precision.requires(levels["device"], levels["dtype"])
    return Cell(levels, requires, cost=float(2 * levels["matrix_size"] ** 3))


def _attention_cell(levels: Mapping[str, Any]) -> Cell:
    """Cost: columns of products and of passes over the matrix, in elements, and a floor for launching."""
    chosen = backends.named(levels["implementation"])
    needs = (*precision.requires(levels["device"], levels["dtype"]), *chosen.requires(levels["device"]))
    width = levels["head_dim"] + (0 if chosen.name in ("triton", "triton_ieee", "tiled", "flex") else COLUMNS_OF_A_PASS)
    matrix = levels["batch"] * levels["heads"] * levels["seq_len"] ** 2
    slow = 4 if levels["dtype"] == "fp32" else 1
    return Cell(levels, tuple(dict.fromkeys(needs)), cost=float(slow * matrix * width + 1e6))


def run(cell: Cell) -> Measurement:
    """Time one cell, the result compared with float64 first."""
    from perfscribe.experiments.flash_benchmarking import passes, products

    keep_compiled_code(cell.data_folder)
    precision.set_matmul_precision(cell["dtype"])
    if cell["workload"] == "matmul":
        return products.measure(cell.factors)
    return passes.measure(cell.factors)


def keep_compiled_code(data_folder: str) -> None:
    """Let Triton and inductor keep what they compile beside the site's results, unless the user has said where.

    Both ask for their folder when they first need it, which is later than this.
    """
    if not data_folder:
        return
    cache = Path(data_folder).resolve().parent / "cache"
    for variable, name in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(variable, str(cache / name))
