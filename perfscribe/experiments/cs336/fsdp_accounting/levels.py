"""Keys of experiments.fsdp_accounting with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, experiment, lengths, sizes, whole, wholes
from perfscribe.data import tokens
from perfscribe.distributed import needs
from perfscribe.experiments.cs336.fsdp_accounting.measure import IMPLEMENTATIONS
from perfscribe.instruments import precision

LEVELS = experiment(
    "Training steps on several ranks with and without sharding of weights, gradients and optimizer state, interleaved",
    backend=shared.BACKEND,
    world_size=wholes("ranks", 2, 1024, [2, 4], tiny=[2]),
    size=sizes("model sizes, as in end_to_end", ["nano"], gpu=["2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [16], gpu=[512]),
    rank_batch=wholes("sequences of each rank in a batch", 1, 1_048_576, [2]),
    dtype=choices(
        "tf32: fp32 with TF32 matrix products; bf16: FSDP's compute_dtype, elsewhere autocast",
        ["fp32", "tf32", "bf16"],
        ["fp32"],
        gpu=["fp32", "bf16"],
    ),
    turns=whole("turns of each implementation; an interval needs 6 or more", 1, 1000, 6, tiny=2),
    warmup_steps=constant(2),  # before the timed ones in each turn: the first learns in which order layers are called
    steps=constant(2),
)

SHOWN = Shown(
    tables=("cs336.fsdp_check", "cs336.fsdp_accounting", "cs336.fsdp_timeline", "cs336.fsdp_timeline_spans"),
    figures=("cs336.fsdp_timeline",),
)


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return token batches for every batch and context length."""
    batches = [ranks * each for ranks in config["world_size"] for each in config["rank_batch"]]
    return tokens.datasets(list(dict.fromkeys(batches)), config["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per dtype, shape and number of ranks, with all implementations."""
    levels = ("dtype", "size", "seq_len", "rank_batch", "world_size", "backend")
    return [_cell(config, level) for level in grid({name: config[name] for name in levels})]


def _cell(config: Mapping[str, Any], level: dict[str, Any]) -> Cell:
    ranks, device = level["world_size"], needs.DEVICES[level["backend"]]
    batch = ranks * level.pop("rank_batch")
    factors = {**level, "batch": batch, "device": device, "variants": " ".join(IMPLEMENTATIONS)}
    factors |= {name: config[name] for name in ("turns", "warmup_steps", "steps")}
    # FLOP of a step, and elements sent and updated, weighted to the scale of FLOP.
    work = transformer_parameters(SIZES[level["size"]]) * (6 * batch * level["seq_len"] + 100 * ranks)
    return Cell(
        factors,
        requires=(*precision.requires(device, level["dtype"]), *needs.of_ranks(device, ranks)),
        cost=float(work * config["turns"]),
        data=(tokens.dataset_name(batch, level["seq_len"]),),
    )
