"""How a model is to be wrapped for data-parallel training, in words; imports nothing heavy, as plans are made of it."""

from __future__ import annotations

from dataclasses import dataclass

SINGLE, DDP, FSDP1, FSDP2 = "single", "ddp", "fsdp1", "fsdp2"
FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD = "full_shard", "shard_grad_op", "hybrid_shard", "no_shard"
WHOLE, PER_BLOCK = "whole", "per_block"
IMPLICIT, FORWARD, BACKWARD, BOTH = "implicit", "forward", "backward", "both"
# Further units that explicit prefetching gathers ahead: with one it does what happens by itself.
PREFETCHED_UNITS = 2
GROUPS = 2  # that HYBRID_SHARD makes of the ranks, as if they were two nodes


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    api: single (the model alone), ddp, fsdp1, fsdp2. strategy: of FSDP; the same word as api otherwise. dtype: of the
    products, and of the parameters that FSDP gathers; the parameters themselves are fp32. reduce_dtype: in which FSDP
    reduces gradients of fp16 and bf16 products. offload: FSDP's parameters, gradients and optimizer state on the CPU.
    checkpointing: each block's activations are computed again in backward. wrapping: whole (the model is one unit) or
    per_block (each block, and the rest). prefetch: implicit, or for which passes it is explicit; FSDP1 has names of its
    own.
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
    """Groups that hold copies, and ranks that share one. ValueError: the ranks cannot be halved."""
    if world_size % GROUPS:
        raise ValueError(f"{HYBRID_SHARD}: {world_size} ranks are no {GROUPS} groups of equal size")
    return GROUPS, world_size // GROUPS


def took_effect(plan: Plan, world_size: int) -> str:
    """The strategy that the libraries are known to put in the place of the one that was asked for.

    FSDP1 turns to NO_SHARD where a single rank would hold every shard, and says so in a warning.
    """
    return NO_SHARD if plan.api == FSDP1 and world_size == 1 else plan.strategy


def shards(plan: Plan, world_size: int) -> tuple[int, int]:
    """Copies of the model's state among the ranks, and the ranks that share one of them."""
    if plan.api in (SINGLE, DDP):
        return world_size, 1
    return hybrid_mesh(world_size) if plan.strategy == HYBRID_SHARD else (1, world_size)
