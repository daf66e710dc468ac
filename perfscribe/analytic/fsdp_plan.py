"""How to wrap a model for data-parallel training. Imports nothing heavy, because the planner uses it."""

from dataclasses import dataclass

SINGLE, DDP, FSDP1, FSDP2 = "single", "ddp", "fsdp1", "fsdp2"
FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD = "full_shard", "shard_grad_op", "hybrid_shard", "no_shard"
WHOLE, PER_BLOCK = "whole", "per_block"
IMPLICIT, FORWARD, BACKWARD, BOTH = "implicit", "forward", "backward", "both"
# Units that explicit prefetching gathers ahead; 1 would equal the default behaviour.
PREFETCHED_UNITS = 2
GROUPS = 2  # groups of ranks in HYBRID_SHARD, which emulate two nodes


@dataclass(frozen=True)
class Plan:
    """Settings requested.

    api: single (unwrapped), ddp, fsdp1 or fsdp2. strategy: FSDP's sharding strategy; else the same as api. dtype: of
    matrix products and of the parameters that FSDP gathers; stored parameters are fp32. reduce_dtype: in which FSDP
    reduces gradients of fp16 and bf16 products. offload: FSDP keeps parameters, gradients, optimizer state on the CPU.
    checkpointing: backward recomputes each block's activations. wrapping: whole (the model is one unit) or per_block
    (each block, and the rest). prefetch: implicit, or the passes with explicit prefetch; FSDP1 has other names.
    """

    api: str = FSDP2
    strategy: str = FULL_SHARD
    dtype: str = "fp32"
    reduce_dtype: str = "fp32"
    offload: bool = False
    checkpointing: bool = False
    wrapping: str = PER_BLOCK
    prefetch: str = IMPLICIT


def hybrid_mesh(world_size: int) -> tuple[int, int]:
    """Return the number of groups, each with one copy, and of ranks per group; raises ValueError for an odd number."""
    if world_size % GROUPS:
        raise ValueError(f"{HYBRID_SHARD}: {world_size} ranks are no {GROUPS} groups of equal size")
    return GROUPS, world_size // GROUPS


def took_effect(plan: Plan, world_size: int) -> str:
    """Return the strategy that the library applies, which may differ from the one requested.

    FSDP1 switches to NO_SHARD, with a warning, if a single rank would hold every shard.
    """
    return NO_SHARD if plan.api == FSDP1 and world_size == 1 else plan.strategy


def shards(plan: Plan, world_size: int) -> tuple[int, int]:
    """Return the number of copies of the model's state, and of ranks that share one copy."""
    if plan.api in (SINGLE, DDP):
        return world_size, 1
    return hybrid_mesh(world_size) if plan.strategy == HYBRID_SHARD else (1, world_size)
