"""Keys of experiments.attention with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import devices, dtypes, experiment, whole, wholes
from perfscribe.instruments import precision

LEVELS = experiment(
    "One attention operation without heads, forward and backward, time and memory",
    rounds=shared.ROUNDS,
    device=devices(["cpu"], gpu=["cuda"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 8),
    head_dim=wholes("widths of a query, key or value vector", 1, 1024, [16, 32, 64, 128], tiny=[8, 16]),
    seq_len=shared.ATTENTION_LENGTHS,
    dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
    warmup_passes=whole("passes before the timed ones, forward and backward each", 0, 10_000, 5, tiny=2, gpu=10),
    passes=whole("passes that are timed, forward and backward each", 1, 100_000, 20, tiny=5, gpu=100),
)

SHOWN = Shown(tables=("cs336.pytorch_attention", "cs336.attention_accounting"), figures=("cs336.attention_by_length",))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, dtype, sequence length and head dimension, all with eager attention."""
    config = {**config, "implementation": ["eager"]}
    factors = {name: config[name] for name in ("device", "implementation", "dtype", "seq_len", "head_dim")}
    fixed = {name: config[name] for name in ("batch", "warmup_passes", "passes")}
    return [
        Cell(
            {**levels, **fixed},
            requires=precision.requires(str(levels["device"]), str(levels["dtype"])),
            cost=_cost(levels, fixed),
        )
        for levels in grid(factors)
    ]


def _cost(levels: Mapping[str, Any], fixed: Mapping[str, Any]) -> float:
    """Return elements of products and element-wise passes over the N x N matrix, and a floor for launching."""
    matrix = fixed["batch"] * levels["seq_len"] ** 2
    return float((fixed["warmup_passes"] + fixed["passes"]) * (matrix * (levels["head_dim"] + 32) + 1e6))
