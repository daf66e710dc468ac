"""Keys of experiments.ddp with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, dtypes, experiment, numbers, whole, wholes
from perfscribe.data import tokens
from perfscribe.distributed import needs
from perfscribe.experiments.cs336.ddp.variants import as_level, variants
from perfscribe.instruments import precision

LEVELS = experiment(
    "Training steps of the language model on several ranks, gradients averaged in several ways, interleaved",
    **shared.DIVIDED_BATCH
    # On 4 H200 half the IQR of a step is at most 0.5 ms with 32, and 3 to 16 ms with 16.
    | {"batch": wholes("sequences in a batch, divided among the ranks", 1, 1_048_576, [4], gpu=[32])},
    dtype=dtypes("tf32: fp32 with TF32 matrix products, as published runs have it; bf16, fp16: autocast", ["fp32"]),
    implementation=choices(
        "naive, flat: after backward; overlap_…: during it; torch_ddp: PyTorch's, torch_ddp_views: "
        "with gradient_as_bucket_view",
        ["naive", "flat", "overlap_individual", "overlap_bucketed", "torch_ddp", "torch_ddp_views"],
    ),
    bucket_mb=numbers(
        "sizes of overlap_bucketed's buckets, in MB of 10^6 bytes",
        0,
        1_000_000,
        [0.1, 1, 10],
        gpu=[1, 10, 100, 1000],
        above=True,
    ),
    turns=whole("turns of each implementation; an interval needs 6 or more", 1, 1000, 6, tiny=2),
    steps=constant(1),  # with communication, and without, that are timed in each turn
    warmup_steps=constant(1),  # before them in each turn; PyTorch's implementation takes one more
)

SHOWN = Shown(
    tables=(
        "cs336.ddp_check",
        "cs336.ddp_benchmark",
        "cs336.ddp_phases",
        "cs336.ddp_timeline",
        "cs336.ddp_overhead",
        "cs336.ddp_timeline_spans",
    ),
    figures=("cs336.ddp_timeline", "cs336.ddp_buckets"),
)

GRID = ("size", "seq_len", "batch", "world_size", "backend")
COUNTS = ("turns", "steps", "warmup_steps")


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return token batches for every batch and context length."""
    return tokens.datasets(config["batch"], config["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per dtype, shape and number of ranks, with all implementations and bucket sizes."""
    chosen = as_level(variants(config["implementation"], config["bucket_mb"]))
    counts = {name: config[name] for name in COUNTS}
    return [
        _cell({**level, "device": needs.DEVICES[str(level["backend"])], "variants": chosen, "traced": True, **counts})
        for level in grid({name: config[name] for name in ("dtype", *GRID)})
    ]


def _cell(factors: dict[str, Any]) -> Cell:
    world_size, batch, device = factors["world_size"], factors["batch"], factors["device"]
    shape = SIZES[factors["size"]]
    parameters = shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    parameters += 2 * shape.vocab_size * shape.d_model
    steps = len(factors["variants"].split()) * factors["turns"] * (factors["warmup_steps"] + 2 * factors["steps"])
    # FLOP of all steps, and elements sent and updated, weighted to the scale of FLOP.
    work = steps * parameters * (6 * batch * factors["seq_len"] + 100 * world_size)
    return Cell(
        factors,
        requires=(*precision.requires(device, factors["dtype"]), *needs.of_ranks(device, world_size)),
        cost=float(work),
        data=(tokens.dataset_name(batch, factors["seq_len"]),),
        skip=f"{world_size} ranks cannot share a batch of {batch} evenly" if batch % world_size else "",
    )
