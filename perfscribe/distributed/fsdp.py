"""Wraps a model for data-parallel training: DDP, FSDP2 (fully_shard) with three strategies, or FSDP1.

FULL_SHARD gathers a unit's parameters before its forward and again before its backward pass; SHARD_GRAD_OP keeps them
gathered in between; HYBRID_SHARD is FULL_SHARD within each of two groups, which hold copies of each other.
fsdp_applied.py checks the result, because libraries silently ignore some settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic import fsdp_plan as p
from perfscribe.analytic.fsdp_plan import Plan

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FSDP1_STRATEGIES = {
    p.FULL_SHARD: torch_fsdp.ShardingStrategy.FULL_SHARD,
    p.SHARD_GRAD_OP: torch_fsdp.ShardingStrategy.SHARD_GRAD_OP,
}
FSDP1_PREFETCH = {
    "backward_pre": (torch_fsdp.BackwardPrefetch.BACKWARD_PRE, False),
    "backward_post": (torch_fsdp.BackwardPrefetch.BACKWARD_POST, False),
    "backward_post_forward": (torch_fsdp.BackwardPrefetch.BACKWARD_POST, True),
    "none": (None, False),
}

Blocks = type[nn.Module]


@dataclass(frozen=True)
class Wrapped:
    """The module to call, its plan, and its device."""

    module: nn.Module
    plan: Plan
    device: torch.device


def wrap(model: nn.Module, plan: Plan, device: torch.device, blocks: Blocks) -> Wrapped:
    """Wrap the model, which is equal on all ranks and on the device, as planned; do not use it unwrapped any more.

    blocks: class of the repeated layers, which are the units of FSDP and of activation checkpointing. Raises ValueError
    if the plan is impossible with this number of ranks.
    """
    if plan.api == p.FSDP1:
        return Wrapped(_fsdp1(model, plan, device, blocks), plan, device)
    _checkpoint(model, plan, blocks)  # within FSDP2's units, so that recomputing a block gathers nothing again
    if plan.api == p.DDP:
        devices = [device.index] if device.type == "cuda" else None
        # Gradients are views of the buckets, so that there is only one copy of them.
        model = DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
    if plan.api == p.FSDP2:
        _fsdp2(model, plan, device, blocks)
    return Wrapped(model, plan, device)


def mesh_of(plan: Plan, device: torch.device) -> DeviceMesh:
    """Return the ranks as this plan arranges them; cached, because each mesh creates process groups."""
    world_size = dist.get_world_size()
    shape = p.hybrid_mesh(world_size) if plan.strategy == p.HYBRID_SHARD else (world_size,)
    return _mesh(device.type, shape)


@cache
def _mesh(device: str, shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def _fsdp2(model: nn.Module, plan: Plan, device: torch.device, blocks: Blocks) -> None:
    options: dict[str, Any] = {
        "mesh": mesh_of(plan, device),
        "reshard_after_forward": plan.strategy != p.SHARD_GRAD_OP,  # explicit for the root too, whose default is False
    }
    if plan.offload:
        options["offload_policy"] = torch_fsdp.CPUOffloadPolicy(pin_memory=device.type == "cuda")
    if plan.dtype != "fp32":
        options["mp_policy"] = torch_fsdp.MixedPrecisionPolicy(
            param_dtype=DTYPES[plan.dtype], reduce_dtype=DTYPES[plan.reduce_dtype]
        )
    inner = (
        blocks_of(model, CheckpointWrapper if plan.checkpointing else blocks) if plan.wrapping == p.PER_BLOCK else []
    )
    for block in inner:
        torch_fsdp.fully_shard(block, **options)
    torch_fsdp.fully_shard(model, **options)
    _prefetch(model, inner, plan)


def _prefetch(model: nn.Module, blocks: list[Any], plan: Plan) -> None:
    """Let each unit gather the next units of its pass as soon as it is gathered itself."""
    units: list[Any] = [model, *blocks]  # in the order of forward
    for at, unit in enumerate(units):
        if plan.prefetch in (p.FORWARD, p.BOTH):
            unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + p.PREFETCHED_UNITS])
        if plan.prefetch in (p.BACKWARD, p.BOTH):
            unit.set_modules_to_backward_prefetch(list(reversed(units[max(1, at - p.PREFETCHED_UNITS) : at])))
    if plan.prefetch in (p.BACKWARD, p.BOTH):  # backward begins with the root, followed by the last block
        units[0].set_modules_to_backward_prefetch(list(reversed(blocks))[: p.PREFETCHED_UNITS])


def _fsdp1(model: nn.Module, plan: Plan, device: torch.device, blocks: Blocks) -> nn.Module:
    backward, forward = FSDP1_PREFETCH[plan.prefetch]
    reduced = DTYPES[plan.reduce_dtype]
    wrapped = torch_fsdp.FullyShardedDataParallel(
        model,
        device_mesh=mesh_of(plan, device),
        sharding_strategy=FSDP1_STRATEGIES[plan.strategy],
        auto_wrap_policy=ModuleWrapPolicy({blocks}) if plan.wrapping == p.PER_BLOCK else None,
        backward_prefetch=backward,
        forward_prefetch=forward,
        cpu_offload=torch_fsdp.CPUOffload(offload_params=True) if plan.offload else None,
        mixed_precision=None
        if plan.dtype == "fp32"
        else torch_fsdp.MixedPrecision(DTYPES[plan.dtype], reduce_dtype=reduced),
        device_id=device,
        use_orig_params=True,
    )
    _checkpoint(wrapped, plan, blocks)  # within the units, which are separate modules here
    return wrapped


def _checkpoint(model: nn.Module, plan: Plan, blocks: Blocks) -> None:
    """Keep only each block's input for backward, which recomputes the rest."""
    if plan.checkpointing:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, blocks),
        )


def blocks_of(model: nn.Module, kind: Blocks) -> list[nn.Module]:
    """Return the model's modules of a class, in registration order."""
    return [module for module in model.modules() if isinstance(module, kind)]
