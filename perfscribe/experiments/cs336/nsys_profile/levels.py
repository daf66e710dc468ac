"""Keys of experiments.nsys_profile with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import constant, devices, experiment, lengths, section, sizes, whole
from perfscribe.data import tokens

LEVELS = experiment(
    "Kernels and ranges of that model's inference and training steps, by Nsight Systems or torch's profiler",
    device=devices(["cpu"], gpu=["cuda"]),
    **shared.language_model("model sizes, as in end_to_end"),
    warmup_steps=whole("passes before the timed and before the traced ones", 1, 10_000, 2, gpu=3),
    timed_steps=whole("passes that are timed without a profiler", 1, 100_000, 5, gpu=10),
    traced_steps=constant(3),
    detailed=section(
        "which cells keep every kernel",
        size=sizes("those of these sizes", ["micro"], tiny=["nano"], gpu=["small"], empty=True),
        seq_len=lengths("and of these sequence lengths, in tokens", [64, 128], tiny=[64], gpu=[128, 256], empty=True),
    ),
)

SHOWN = Shown(
    tables=(
        "cs336.nsys_forward",
        "cs336.nsys_top_kernels",
        "cs336.nsys_attention",
        "cs336.nsys_families",
        "cs336.nsys_nvtx_kernels",
    ),
    figures=("cs336.nsys_forward",),
)

datasets = tokens.of_section


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return cells of size x context x dtype; the factor `detailed` keeps every kernel in the record."""
    levels, detailed = {name: config[name] for name in ("device", "size", "seq_len", "dtype")}, config["detailed"]
    fixed = {name: config[name] for name in ("batch", "warmup_steps", "timed_steps", "traced_steps")}
    return [
        _cell({**level, "detailed": all(level[name] in detailed[name] for name in detailed), **fixed})
        for level in grid(levels)
    ]


def _cell(factors: dict[str, Any]) -> Cell:
    weight = 4.0 if factors["dtype"] == "fp32" else 1.0
    shape, batch_tokens = SIZES[factors["size"]], factors["batch"] * factors["seq_len"]
    work = shape.layers * (12 * shape.d_model**2 + 2 * factors["seq_len"] * shape.d_model) * batch_tokens
    passes = 2 * factors["warmup_steps"] + factors["timed_steps"] + factors["traced_steps"]
    # Starting the traced program takes longer than the passes of the small sizes.
    return tokens.cell(factors, cost=1e13 + float(weight * passes * work))
