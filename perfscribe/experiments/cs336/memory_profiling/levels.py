"""Keys of experiments.memory_profiling with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, devices, dtypes, experiment, isolation, lengths, sizes, whole
from perfscribe.data import tokens

LEVELS = experiment(
    "Every allocation and free of one pass of that model: memory over its course, by kind and by line of code",
    isolation=isolation("job", gpu="cell"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["micro"], tiny=["nano"], gpu=["small", "2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [48, 96, 192], tiny=[12, 24], gpu=[128, 256, 512]),
    mode=choices(
        "inference: forward under no_grad | forward: with the graph kept | full_step: forward, backward, optimizer",
        ["inference", "forward", "full_step"],
    ),
    dtype=dtypes("bf16, fp16: autocast | tf32: fp32 with TF32 matrix products", ["fp32", "bf16"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
)

SHOWN = Shown(
    tables=("cs336.memory_peaks", "cs336.memory_residual", "cs336.memory_largest", "cs336.memory_timelines"),
    figures=("cs336.memory_timeline",),
)

datasets = tokens.of_section


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, size, context length, mode and dtype."""
    levels = {name: config[name] for name in ("device", "size", "seq_len", "mode", "dtype")}
    return [_cell({**factors, "batch": config["batch"]}) for factors in grid(levels)]


def _cell(factors: dict[str, Any]) -> Cell:
    shape = SIZES[factors["size"]]
    # A fresh process and a model's parameters cost more than the few passes.
    cost = 1e12 + shape.layers * 12.0 * shape.d_model**2 * (1e3 + factors["batch"] * factors["seq_len"])
    return tokens.cell(factors, cost)
