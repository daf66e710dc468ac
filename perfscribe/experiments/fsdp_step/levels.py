"""Keys of experiments.fsdp_step with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, experiment, whole, wholes

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
