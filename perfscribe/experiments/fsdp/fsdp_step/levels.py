"""Keys of experiments.fsdp_step with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.fsdp_plan import FSDP1, FSDP2, IMPLICIT, PER_BLOCK, WHOLE
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, experiment, whole, wholes
from perfscribe.distributed import needs
from perfscribe.instruments import precision

LEVELS = experiment(
    "One training step under FULL_SHARD, traced: computing, communication and idle time, by wrapping and batch",
    **shared.STRATEGY_RUNS,
    world_size=wholes("ranks", 2, 1024, [2], gpu=[2, 4]),
    wrapping=choices(
        "per_block: FSDP2, a unit a block | whole: FSDP1, one unit, as the workshop's settings take effect",
        ["per_block", "whole"],
    ),
    batch=wholes(
        "rows of a rank; one that is too large for the GPU is shown as such", 1, 65_536, [1, 8], gpu=[1, 8, 16, 32]
    ),
    dtype=choice(
        "of the products and of what is gathered; parameters are fp32", ["fp32", "bf16", "fp16"], "fp32", gpu="fp16"
    ),
    seq_len=whole("sequence length, in tokens", 2, 1_048_576, 32, tiny=16, gpu=512),
    warmup_steps=whole("steps before the timed ones; three more come before them, which are checked", 0, 100, 1, gpu=2),
    timed_steps=whole("steps that are timed", 1, 1000, 3, tiny=2, gpu=8),
)

SHOWN = Shown(tables=("fsdp.step",))

WAYS = {
    PER_BLOCK: {"api": FSDP2, "wrapping": PER_BLOCK, "prefetch": IMPLICIT},
    WHOLE: {"api": FSDP1, "wrapping": WHOLE, "prefetch": "backward_post_forward"},
}


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell per number of ranks, wrapping and batch."""
    fixed = {name: config[name] for name in ("backend", "model", "dtype", "seq_len", "warmup_steps", "timed_steps")}
    fixed |= {"device": needs.DEVICES[config["backend"]], "strategy": "full_shard", "reduce_dtype": "fp32"}
    fixed |= {"offload": False, "checkpointing": False}
    planned = []
    for levels in grid({name: config[name] for name in ("world_size", "wrapping", "batch")}):
        factors = {**levels, **WAYS[str(levels["wrapping"])], **fixed}
        requires = [*precision.requires(factors["device"], factors["dtype"])]
        requires += ["transformers"] * (factors["model"] in BLOOM)
        requires += needs.of_ranks(factors["device"], factors["world_size"])
        cost = 100.0 * factors["world_size"] + factors["batch"]
        planned.append(Cell(factors, requires=tuple(requires), cost=cost))
    return planned
