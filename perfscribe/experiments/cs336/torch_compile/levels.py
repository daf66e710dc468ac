"""Keys of experiments.torch_compile with their defaults, its cells, and what it shows."""

from collections.abc import Iterator, Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import (
    choices,
    devices,
    dtypes,
    experiment,
    lengths,
    section,
    sizes,
    timeout,
    whole,
    wholes,
)
from perfscribe.data import tokens
from perfscribe.instruments import precision

LEVELS = experiment(
    "Attention and training steps, eager and compiled, interleaved",
    rounds=shared.ROUNDS,
    timeout_s=timeout(1200),
    device=devices(["cpu"], gpu=["cuda"]),
    turns=whole("turns of eager and compiled in each round; an interval needs 6 or more in all", 1, 1000, 6, gpu=3),
    attention=section(
        "the attention grid of `attention`",
        backend=choices(
            "inductor: needs a compiler | aot_eager: the compiler's graphs, run by PyTorch's own kernels",
            ["inductor", "aot_eager"],
            ["aot_eager", "inductor"],
            tiny=["aot_eager"],
            gpu=["inductor"],
        ),
        dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
        head_dim=wholes("widths of a query, key or value vector", 1, 1024, [64], tiny=[8], gpu=[16, 32, 64, 128]),
        seq_len=shared.ATTENTION_LENGTHS,
        batch=whole("sequences in a batch", 1, 1_048_576, 8),
        passes=whole(
            "passes timed in each turn, forward and backward each; at least 3, and fewer where they last 0.1 s",
            1,
            10_000,
            5,
            tiny=2,
            gpu=13,
        ),
    ),
    model=section(
        "full training steps of the models of end_to_end",
        backend=choices("inductor | aot_eager, as above", ["inductor", "aot_eager"], ["aot_eager"], gpu=["inductor"]),
        dtype=dtypes("fp32 | tf32 | bf16 | fp16", ["fp32"]),
        size=sizes(
            "model sizes; nano, micro and mini are for machines without a GPU",
            ["nano"],
            gpu=["small", "medium", "large", "xl", "2.7B"],
        ),
        seq_len=lengths("sequence lengths, in tokens", [32, 64, 128], tiny=[16, 32, 64], gpu=[512]),
        batch=whole("sequences in a batch", 1, 1_048_576, 4),
        passes=whole("steps that are timed in each turn", 1, 10_000, 2, tiny=1),
    ),
)

SHOWN = Shown(
    tables=(
        "cs336.compiled_attention",
        "cs336.compiled_attention_speedup",
        "cs336.compiled_models",
        "cs336.compiled_models_speedup",
        "cs336.compile_cost",
    ),
    figures=("cs336.compiled_speedups",),
)


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return token batches for every context length of the models."""
    model = config["model"]
    return tokens.datasets([model["batch"]], model["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return the attention grid, then the models."""
    return [_cell(factors) for problem in ("attention", "model") for factors in _levels(config, problem)]


def _levels(config: Mapping[str, Any], problem: str) -> Iterator[dict[str, Any]]:
    section = config[problem]
    names = ("backend", "dtype", *(("head_dim", "seq_len") if problem == "attention" else ("size", "seq_len")))
    levels = {"device": config["device"], **{name: section[name] for name in names}}
    fixed = {"batch": section["batch"], "turns": config["turns"], "warmup_passes": 1, "passes": section["passes"]}
    return ({"problem": problem, "implementation": "compiled", **factors, **fixed} for factors in grid(levels))


def _cell(factors: dict[str, Any]) -> Cell:
    """Return the cell; inductor requires a C++ compiler for a CPU, and Triton for a GPU."""
    device, is_model = factors["device"], factors["problem"] == "model"
    requires = precision.requires(device, factors["dtype"])
    if factors["backend"] == "inductor":
        requires += ("triton", "c_compiler") if device == "cuda" else ("compiler",)
    data = (tokens.dataset_name(factors["batch"], factors["seq_len"]),) if is_model else ()
    return Cell(factors, requires=requires, cost=_cost(factors), data=data)


def _cost(factors: Mapping[str, Any]) -> float:
    """Return FLOP and element-wise work of all passes, plus compile time on that scale.

    A second is worth more work on a GPU than on a CPU; aot_eager writes no kernels.
    """
    passes = 3 * factors["turns"] * (factors["warmup_passes"] + factors["passes"])  # eager runs twice in each turn
    if factors["problem"] == "attention":
        parts, work = 1, factors["seq_len"] ** 2 * (12 * factors["head_dim"] + 300)
    else:
        shape = SIZES[factors["size"]]
        flop_per_token = 6.0 * shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
        parts, work = 3 * shape.layers, factors["seq_len"] * flop_per_token
    compiling_s = 10 + parts if factors["backend"] == "inductor" else 1 + 0.1 * parts
    return float(passes * factors["batch"] * work + compiling_s * (2e13 if factors["device"] == "cuda" else 2e10))
