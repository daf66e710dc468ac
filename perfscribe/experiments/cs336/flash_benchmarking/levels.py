"""Keys of experiments.flash_benchmarking with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.attention import backends
from perfscribe.base.cells import Cell, Level, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, constants, devices, experiment, lengths, whole, wholes
from perfscribe.instruments import precision

SDPA = ["sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"]
IMPLEMENTATIONS = ["eager", "compiled", "tiled", "triton", *SDPA, "flex"]

# Further grids have the levels that the user sets for these keys.
FOLLOWS = ("seq_len", "head_dim")

LEVELS = experiment(
    "Causal attention by every implementation at hand, forward, backward and both, over length and head dimension",
    rounds=shared.ROUNDS,
    device=devices(["cpu"], gpu=["cuda"]),
    implementation=choices(
        "eager, compiled; tiled, triton: ours; sdpa_…: backends of scaled_dot_product_attention; flex: FlexAttention",
        IMPLEMENTATIONS,
        ["eager", "tiled", "sdpa_flash", "sdpa_math", "triton"],
        tiny=["eager", "tiled", "sdpa_flash", "triton"],
        gpu=["eager", "triton"],
    ),
    seq_len=lengths(
        "sequence lengths, in tokens",
        [128, 256, 512],
        tiny=[32, 64, 128],
        gpu=[128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
    ),
    head_dim=wholes("widths of a query, key or value vector", 1, 1024, [32, 64], tiny=[16, 32], gpu=[16, 32, 64, 128]),
    dtype=choices(
        "fp32 | bf16 | fp16, of the tensors themselves", ["fp32", "bf16", "fp16"], ["fp32", "bf16"], tiny=["fp32"]
    ),
    batch=whole("sequences in a batch", 1, 1_048_576, 1),
    samples=whole(
        "samples of each pass; fewer, but at least 3, where they would last longer than a tenth of a second",
        1,
        1000,
        5,
        gpu=10,
    ),
    # Implementations that are too costly, or too slow to compile, for every problem.
    sub_grid=constants(
        FOLLOWS,
        implementation=constant([], gpu=["compiled", "flex", "sdpa_flash", "sdpa_cudnn"]),
        seq_len=constant([1024, 4096, 16384, 65536]),
        head_dim=constant([64, 128]),
        dtype=constant(["bf16"]),
    ),
    tf32=constants(
        FOLLOWS,
        implementation=constant([], gpu=["eager", "triton"]),
        seq_len=constant([1024, 4096, 16384, 65536]),
        head_dim=constant([64, 128]),
    ),
    # Products by fp32 multiply-adds; those of dtype fp32 are three TF32 products.
    ieee=constants(
        FOLLOWS,
        implementation=constant([], gpu=["triton_ieee"]),
        seq_len=constant([1024, 4096, 16384]),
        head_dim=constant([64, 128]),
    ),
    leaderboard=constants(
        implementation=constant(
            ["eager", "tiled", "sdpa_flash", "sdpa_math"],
            tiny=["eager", "tiled", "sdpa_flash"],
            gpu=["eager", "triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex"],
        ),
        heads=constant(4, tiny=2, gpu=16),
        seq_len=constant(256, tiny=64, gpu=16384),
        head_dim=constant(64, tiny=16),
        dtype=constant("bf16", tiny="fp32"),
    ),
    # Square products whose rate is the ceiling.
    matmul=constants(
        matrix_size=constant([256, 512, 1024], tiny=[64, 128, 256], gpu=[8192]),
        dtype=constant(["fp32", "bf16"], tiny=["fp32"], gpu=["fp32", "tf32", "bf16", "fp16"]),
    ),
)

SHOWN = Shown(tables=("cs336.flash_leaderboard", "cs336.flash_cells"), figures=("cs336.flash_times",))

# In the cells' order; the implementation varies fastest.
PROBLEM = ("workload", "device", "seq_len", "head_dim", "dtype", "batch", "heads", "causal")
FACTORS = (*PROBLEM, "implementation", "samples")
# Columns of a product that cost about as much as one pass of eager attention over the N x N matrix.
COLUMNS_OF_A_PASS = 64


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return matrix products (the ceiling), then attention over all grids and the leaderboard, each cell once."""
    products = {**config["matmul"], "workload": "matmul", "device": config["device"], "samples": config["samples"]}
    attention: list[dict[str, Level]] = []
    for workload, levels in (
        ("grid", {**config, "heads": 1}),
        ("grid", {**config["sub_grid"], "heads": 1}),
        ("grid", {**config["tf32"], "heads": 1, "dtype": "tf32"}),
        ("grid", {**config["ieee"], "heads": 1, "dtype": "fp32"}),
        ("leaderboard", config["leaderboard"]),
    ):
        shared = {name: config[name] for name in ("device", "batch", "samples")}
        attention += _combinations({**levels, **shared, "workload": workload, "causal": True}, FACTORS)
    unlike = {tuple(levels.values()): levels for levels in attention}
    return [
        *map(_product_cell, _combinations(products, ("workload", "device", "dtype", "matrix_size", "samples"))),
        *map(_attention_cell, unlike.values()),
    ]


def _combinations(levels: Mapping[str, Any], names: tuple[str, ...]) -> list[dict[str, Level]]:
    """Return every combination of these levels, each a list or a single level."""
    return list(grid({name: level if isinstance(level := levels[name], list) else [level] for name in names}))


def _product_cell(levels: Mapping[str, Any]) -> Cell:
    requires = precision.requires(levels["device"], levels["dtype"])
    return Cell(levels, requires, cost=float(2 * levels["matrix_size"] ** 3))


def _attention_cell(levels: Mapping[str, Any]) -> Cell:
    """Return the cell; cost: elements of the matrix times columns of products and passes, and a floor for launching."""
    chosen = backends.named(levels["implementation"])
    needs = (*precision.requires(levels["device"], levels["dtype"]), *chosen.requires(levels["device"]))
    width = levels["head_dim"] + (0 if chosen.name in ("triton", "triton_ieee", "tiled", "flex") else COLUMNS_OF_A_PASS)
    matrix = levels["batch"] * levels["heads"] * levels["seq_len"] ** 2
    slow = 4 if levels["dtype"] == "fp32" else 1
    return Cell(levels, tuple(dict.fromkeys(needs)), cost=float(slow * matrix * width + 1e6))
