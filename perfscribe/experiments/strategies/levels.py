"""Keys of experiments.strategies with their defaults, and what it shows."""

from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, experiment, flag, flags, whole, wholes

LEVELS = experiment(
    "Training steps under DDP and FSDP by sharding strategy, off-load, checkpointing, dtype and number of ranks",
    **shared.STRATEGY_RUNS,
    world_size=wholes("ranks", 1, 1024, [1, 2], gpu=[1, 2, 4]),
    full_grid=flag(
        "whether several ranks have every combination; otherwise one differs at a time from the first level of each",
        False,
        gpu=True,
    ),
    strategy=choices(
        "FSDP2's without a prefix; FSDP1's are measured beside the first level of all else alone",
        ["full_shard", "ddp", "shard_grad_op", "hybrid_shard", "fsdp1_full_shard", "fsdp1_shard_grad_op"],
        ["full_shard", "ddp", "shard_grad_op", "hybrid_shard", "fsdp1_full_shard"],
    ),
    dtype=choices(
        "of the products and of what is gathered; parameters are fp32",
        ["fp32", "bf16", "fp16"],
        tiny=["fp32", "bf16"],
        gpu=["fp16"],
    ),
    reduce_dtype=choice("in which FSDP reduces gradients of bf16 and fp16 products", ["fp32", "bf16", "fp16"], "fp32"),
    offload=flags("whether FSDP keeps parameters, gradients and optimizer state on the CPU", [False, True]),
    checkpointing=flags("whether the activations of each block are computed again in backward", [False, True]),
    batch=whole("sequences in a batch of each rank", 1, 1_048_576, 1),
    seq_len=whole("sequence length, in tokens", 2, 1_048_576, 32, tiny=16, gpu=512),
    warmup_steps=whole(
        "steps before the timed ones; four more come before them, in which the plan is looked at", 0, 5, 1, gpu=2
    ),
    timed_steps=whole("steps that are timed", 1, 20, 3, tiny=2, gpu=8),
    offload_steps=whole("steps that are timed with CPU off-load", 1, 20, 3, tiny=2),
    wrapping=choices(
        "variants of wrapping and prefetching under FULL_SHARD with several ranks, as api:wrapping:prefetch",
        [
            "fsdp2:per_block:implicit",
            "fsdp2:per_block:forward",
            "fsdp2:per_block:backward",
            "fsdp2:per_block:both",
            "fsdp2:whole:implicit",
            "fsdp1:per_block:backward_pre",
            "fsdp1:per_block:backward_post",
            "fsdp1:per_block:backward_post_forward",
            "fsdp1:per_block:none",
            "fsdp1:whole:backward_post_forward",
        ],
        [
            "fsdp2:per_block:implicit",
            "fsdp2:per_block:both",
            "fsdp2:whole:implicit",
            "fsdp1:per_block:backward_post_forward",
            "fsdp1:whole:backward_post_forward",
        ],
        tiny=["fsdp2:per_block:implicit", "fsdp1:per_block:backward_post_forward", "fsdp1:whole:backward_post_forward"],
        gpu=[
            "fsdp2:per_block:implicit",
            "fsdp2:per_block:forward",
            "fsdp2:per_block:backward",
            "fsdp2:per_block:both",
            "fsdp2:whole:implicit",
            "fsdp1:per_block:backward_post_forward",
            "fsdp1:per_block:backward_pre",
            "fsdp1:per_block:none",
            "fsdp1:whole:backward_post_forward",
        ],
    ),
    turns=whole("turns of those variants; an interval needs 6 or more", 1, 20, 2, tiny=1, gpu=6),
    turn_steps=whole("steps that are timed in each turn, after one that is not", 1, 20, 2, tiny=1, gpu=3),
)

SHOWN = Shown(
    tables=("fsdp.strategies", "fsdp.wrapping", "fsdp.world_of_one", "fsdp.offload_accumulation"),
    figures=("fsdp.strategies",),
)
