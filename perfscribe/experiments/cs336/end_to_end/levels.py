"""Keys of experiments.end_to_end with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import devices, dtypes, experiment, section, whole
from perfscribe.data import tokens

LEVELS = experiment(
    "Forward, backward and optimizer step of a whole language model",
    rounds=shared.ROUNDS,
    device=devices(["cpu"], gpu=["cuda"]),
    **shared.language_model("model sizes; nano, micro and mini are for machines without a GPU"),
    warmup_steps=whole("steps before the timed ones", 0, 10_000, 5),
    timed_steps=whole("steps that are timed", 1, 100_000, 10),
    single_length=section(
        "further cells, at one sequence length only",
        seq_len=whole("that length, in tokens", 1, 1_048_576, 128, tiny=32, gpu=512),
        dtype=dtypes(
            "further dtypes, for every size", ["bf16"], tiny=["bf16", "fp16"], gpu=["tf32", "bf16", "fp16"], empty=True
        ),
    ),
)

SHOWN = Shown(
    tables=("cs336.benchmarking_script", "cs336.benchmarking_rates", "cs336.mixed_precision_passes"),
    figures=("cs336.mixed_precision_speedup",),
    references=("mixed_precision",),
)


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return token batches for every context length."""
    contexts = [*config["seq_len"], config["single_length"]["seq_len"]]
    return tokens.datasets([config["batch"]], contexts, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return size x context x dtype, then the additional dtypes at one context."""
    single = config["single_length"]
    everywhere = {name: config[name] for name in ("device", "size", "seq_len", "dtype")}
    at_one = {**everywhere, "seq_len": [single["seq_len"]], "dtype": single["dtype"]}
    combinations = [*grid(everywhere)]
    combinations += [levels for levels in grid(at_one) if levels not in combinations]
    fixed = {name: config[name] for name in ("warmup_steps", "batch", "timed_steps")}
    return [_cell({**levels, **fixed}) for levels in combinations]


def _cell(factors: dict[str, Any]) -> Cell:
    # True fp32 runs without tensor cores and costs about four times as much as the others.
    weight = 4.0 if factors["dtype"] == "fp32" else 1.0
    shape, positions = SIZES[factors["size"]], factors["batch"] * factors["seq_len"]
    work = shape.layers * (12 * shape.d_model**2 + 2 * factors["seq_len"] * shape.d_model) * positions
    steps = factors["warmup_steps"] + factors["timed_steps"]
    return tokens.cell(factors, cost=float(weight * steps * (work + 1e8)))
