"""Reads from a wrapped object how a model was wrapped, and compares it with the plan.

Frameworks on top of torch accept settings that have no effect: a list of layers to wrap that is read only with another
setting, FSDP on a CPU that becomes DDP. So each measurement records what it ran on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic import fsdp_plan as p
from perfscribe.analytic.fsdp_plan import Plan
from perfscribe.distributed.fsdp import DTYPES, FSDP1_PREFETCH, Wrapped, blocks_of

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Applied:
    """Properties of a wrapped model.

    wrapper: the wrapping class, or none. strategy: in effect. replicas, shards: of its mesh. units: parts whose
    parameters are gathered together. dtype, reduce_dtype: of FSDP's mixed precision; fp32 without one, "autocast" if
    left to autocast. offload: whether FSDP keeps parameters on the CPU. checkpointed: number of blocks whose
    activations are recomputed. prefetch: as in Plan.
    """

    wrapper: str
    strategy: str
    replicas: int
    shards: int
    units: int
    dtype: str
    reduce_dtype: str
    offload: bool
    checkpointed: int
    prefetch: str


def read(wrapped: Wrapped) -> Applied:
    """Return the module's properties; raises ValueError if its units differ, or its wrapping is not known here."""
    module = wrapped.module
    checkpointed = len(blocks_of(module, CheckpointWrapper))
    if isinstance(module, FullyShardedDataParallel):
        return _read_fsdp1(module, checkpointed)
    if isinstance(module, DistributedDataParallel):
        size = module.process_group.size()
        return Applied(
            "DistributedDataParallel", p.DDP, size, 1, 0, "autocast", "fp32", False, checkpointed, prefetch=p.IMPLICIT
        )
    if isinstance(module, FSDPModule):
        return _read_fsdp2(module, checkpointed)
    return Applied("none", p.SINGLE, 1, 1, 0, "autocast", "fp32", False, checkpointed, prefetch=p.IMPLICIT)


def expected(plan: Plan, world_size: int, blocks: int) -> Applied:
    """Return the properties that the plan implies for a model with this many blocks."""
    is_fsdp = plan.api in (p.FSDP1, p.FSDP2)
    replicas, parts = p.shards(plan, world_size)
    return Applied(
        wrapper={p.SINGLE: "none", p.DDP: "DistributedDataParallel", p.FSDP1: "FullyShardedDataParallel"}.get(
            plan.api, "fully_shard"
        ),
        strategy=p.took_effect(plan, world_size),
        replicas=1 if plan.api == p.SINGLE else replicas,
        shards=parts,
        units=(1 + blocks if plan.wrapping == p.PER_BLOCK else 1) if is_fsdp else 0,
        dtype=plan.dtype if is_fsdp else "autocast",
        reduce_dtype="fp32" if plan.dtype == "fp32" else plan.reduce_dtype,
        offload=plan.offload,
        checkpointed=blocks if plan.checkpointing else 0,
        prefetch=plan.prefetch,
    )


def check(wrapped: Wrapped, world_size: int, blocks: int) -> Applied:
    """Return the module's properties; raises ValueError, naming the difference, unless they are as planned."""
    found, asked = read(wrapped), expected(wrapped.plan, world_size, blocks)
    for name, wanted in asdict(asked).items():
        if getattr(found, name) != wanted:
            raise ValueError(f"asked for {name} {wanted}, but the wrapped model has {getattr(found, name)}")
    return found


def _one(values: set[Any], what: str) -> Any:
    if len(values) != 1:
        raise ValueError(f"{what} differs between the units of the wrapped model: {sorted(map(str, values))}")
    return values.pop()


def _read_fsdp2(module: nn.Module, checkpointed: int) -> Applied:
    wrapped: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
    states = [part._get_fsdp_state() for part in wrapped]
    groups = [group for state in states if (group := state._fsdp_param_group) is not None]
    meshes = {(one.device_mesh.shape, str(one.placements)) for one in module.parameters() if isinstance(one, DTensor)}
    if not all(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise ValueError("the wrapped model holds parameters that no unit of it shards")
    shape, _ = _one(meshes, "the mesh")
    reshards = _one({group.post_forward_mesh_info is not None for group in groups}, "resharding after forward")
    strategy = p.HYBRID_SHARD if len(shape) == 2 else p.FULL_SHARD
    policy = _one({(group.mp_policy.param_dtype, group.mp_policy.reduce_dtype) for group in groups}, "precision")
    return Applied(
        "fully_shard",
        strategy if reshards else p.SHARD_GRAD_OP,
        shape[0] if len(shape) == 2 else 1,
        shape[-1],
        len(groups),
        NAMES[policy[0] or torch.float32],
        NAMES[policy[1] or torch.float32],
        _one({isinstance(group.offload_policy, CPUOffloadPolicy) for group in groups}, "off-loading"),
        checkpointed,
        _read_prefetch(states),
    )


def _read_prefetch(states: list[Any]) -> str:
    forward = any(state._states_to_forward_prefetch for state in states)
    backward = any(state._states_to_backward_prefetch for state in states)
    return {(True, True): p.BOTH, (True, False): p.FORWARD, (False, True): p.BACKWARD}.get(
        (forward, backward), p.IMPLICIT
    )


def _read_fsdp1(module: FullyShardedDataParallel, checkpointed: int) -> Applied:
    units = FullyShardedDataParallel.fsdp_modules(module)
    strategy = _one({unit.sharding_strategy.name.lower() for unit in units}, "the strategy")
    mixed = _one({(unit.mixed_precision.param_dtype, unit.mixed_precision.reduce_dtype) for unit in units}, "precision")
    chosen = _one({(unit.backward_prefetch, unit.forward_prefetch) for unit in units}, "prefetching")
    group: Any = module.process_group
    size = group.size()
    return Applied(
        "FullyShardedDataParallel",
        strategy,
        1,
        1 if strategy == p.NO_SHARD else size,
        sum(unit._has_params for unit in units),
        NAMES[mixed[0] or torch.float32],
        NAMES[mixed[1] or torch.float32],
        _one({unit.cpu_offload.offload_params for unit in units}, "off-loading"),
        checkpointed,
        next(name for name, pair in FSDP1_PREFETCH.items() if pair == chosen),
    )
