"""Keys of experiments.gradient_checkpointing with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, devices, dtypes, experiment, isolation, lengths, sizes, whole
from perfscribe.data import tokens

LEVELS = experiment(
    "Training steps of the model of end_to_end whose backward recomputes layers: memory and time by block size",
    isolation=isolation("job", gpu="cell"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["mini"], tiny=["nano"], gpu=["2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [192], tiny=[16], gpu=[512, 2048]),
    block_size=choices(
        "layers that are recomputed as one | 0.5: attention and feed-forward of a layer apart | none: nothing is",
        ["none", 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48],
        ["none", 0.5, 1, 2, 3, 6],
        tiny=["none", 0.5, 1, 2],
        gpu=["none", 0.5, 1, 2, 4, 8, 16, 32],
    ),
    dtype=dtypes("tf32: fp32 with TF32 matrix products; bf16, fp16: autocast", ["fp32"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
    warmup_steps=whole("steps before the timed ones", 0, 10_000, 1),
    timed_steps=whole("steps that are timed", 1, 100_000, 5, tiny=2),
)
SHOWN = Shown(tables=("cs336.gradient_checkpointing",), figures=("cs336.gradient_checkpointing",))

datasets = tokens.of_section


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, size, context length, dtype and block size."""
    levels = {name: config[name] for name in ("device", "size", "seq_len", "dtype", "block_size")}
    fixed = {name: config[name] for name in ("batch", "warmup_steps", "timed_steps")}
    return [tokens.cell({**level, **fixed}, _cost(level)) for level in grid(levels)]


def _cost(level: Mapping[str, Any]) -> float:
    shape = SIZES[level["size"]]
    # A fresh process costs some seconds, whatever the model's size.
    return 1e8 + float(shape.layers * 12 * shape.d_model**2 * level["seq_len"])
