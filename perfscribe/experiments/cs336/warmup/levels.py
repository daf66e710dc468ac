"""Keys of experiments.warmup with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import alone, devices, dtypes, experiment, isolation, lengths, sizes, whole, wholes
from perfscribe.data import tokens

LEVELS = experiment(
    "Full training steps of that model after few warm-up steps or none",
    isolation=isolation("cell"),
    alone=alone("which would share the driver, which loads kernels"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["nano"], gpu=["small", "medium", "large", "xl", "2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [128], tiny=[32], gpu=[512]),
    dtype=dtypes("tf32: fp32 with TF32 matrix products; bf16, fp16: autocast", ["fp32"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
    warmup_steps=wholes("numbers of steps before the timed ones", 0, 10_000, [0, 1, 2, 5]),
    timed_steps=whole("steps that are timed", 1, 100_000, 10),
)

SHOWN = Shown(
    tables=("cs336.benchmarking_warmup", "cs336.benchmarking_steps"),
    figures=("cs336.benchmarking_steps",),
    references=("end_to_end",),
)

datasets = tokens.of_section


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, size, context length, dtype and number of warm-up steps."""
    factors = {name: config[name] for name in ("device", "size", "seq_len", "dtype", "warmup_steps")}
    fixed = {"batch": config["batch"], "timed_steps": config["timed_steps"]}
    return [_cell({**levels, **fixed}) for levels in grid(factors)]


def _cell(factors: dict[str, Any]) -> Cell:
    shape = SIZES[factors["size"]]
    steps = factors["warmup_steps"] + factors["timed_steps"]
    # A fresh process costs some seconds, whatever the model's size.
    cost = 1e12 + shape.layers * 12.0 * shape.d_model**2 * factors["batch"] * factors["seq_len"] * steps
    return tokens.cell(factors, cost)
