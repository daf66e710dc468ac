"""Wraps a model for data-parallel training by DDP, FSDP2 (fully_shard) or FSDP1, and reads off how one is wrapped.

FULL_SHARD gathers a unit's parameters before its forward and again before its backward pass; SHARD_GRAD_OP keeps them
gathered in between; HYBRID_SHARD is FULL_SHARD within each of two groups, which hold copies of each other.

Frameworks accept settings that have no effect: a list of layers that is read only with another setting, FSDP on a CPU
that becomes plain DDP, or no wrapper in a single process. So each measurement records what it ran on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic import fsdp_plan as p
from perfscribe.analytic.fsdp_plan import Plan
from perfscribe.instruments import precision

NONE, FSDP1, FSDP2 = "none", "FSDP1", "FSDP2"  # wrappers of trainings; a plan's api has other names
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
BLOCKS = ("BloomBlock", "TransformerEncoderLayer")  # by name: importing transformers takes seconds


@dataclass(frozen=True)
class Wrapped:
    """The module to call, its plan, and its device."""

    module: nn.Module
    plan: Plan
    device: torch.device


def wrap(model: nn.Module, plan: Plan, device: torch.device) -> Wrapped:
    """Wrap the model, which is equal on all ranks and on the device, as planned; do not use it unwrapped any more.

    Its transformer blocks are the units of FSDP and of activation checkpointing. Raises ValueError if the plan is
    impossible with this number of ranks.
    """
    if plan.api == p.FSDP1:
        return Wrapped(_fsdp1(model, plan, device), plan, device)
    _checkpoint(model, plan)  # within FSDP2's units, so that recomputing a block gathers nothing again
    if plan.api == p.DDP:
        devices = [device.index] if device.type == "cuda" else None
        # Gradients are views of the buckets, so that there is only one copy of them.
        model = DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
    if plan.api == p.FSDP2:
        _fsdp2(model, plan, device)
    return Wrapped(model, plan, device)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks of the workshop's two models, wrapped or not, in registration order."""
    return [part for part in model.modules() if any(kind.__name__ in BLOCKS for kind in type(part).__mro__)]


@cache
def _mesh(device: str, is_hybrid: bool) -> DeviceMesh:
    """Return the ranks in one group, or in several that hold copies; cached, because it creates process groups."""
    if is_hybrid:
        return init_device_mesh(device, p.hybrid_mesh(dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("shard",))


def shard(model: nn.Module, blocks: Iterable[nn.Module], dtype: str, reduce_dtype: str, **options: Any) -> None:
    """Shard each block and the rest of the model, in place (fully_shard); options: further ones of each unit.

    dtype, reduce_dtype: of gathered parameters and of reduced gradients, unless dtype is fp32; shards stay fp32.
    """
    if dtype != "fp32":
        options["mp_policy"] = torch_fsdp.MixedPrecisionPolicy(DTYPES[dtype], DTYPES[reduce_dtype])
    for unit in (*blocks, model):
        torch_fsdp.fully_shard(unit, **options)


def _fsdp2(model: nn.Module, plan: Plan, device: torch.device) -> None:
    options: dict[str, Any] = {
        "mesh": _mesh(device.type, plan.strategy == p.HYBRID_SHARD),
        "reshard_after_forward": plan.strategy != p.SHARD_GRAD_OP,  # explicit for the root too, whose default is False
    }
    if plan.offload:
        options["offload_policy"] = torch_fsdp.CPUOffloadPolicy(pin_memory=device.type == "cuda")
    blocks = _checkpointed(model) if plan.checkpointing else blocks_of(model)
    inner = blocks if plan.wrapping == p.PER_BLOCK else []
    shard(model, inner, plan.dtype, plan.reduce_dtype, **options)
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


def _fsdp1(model: nn.Module, plan: Plan, device: torch.device) -> nn.Module:
    backward, forward = FSDP1_PREFETCH[plan.prefetch]
    kinds = {type(block) for block in blocks_of(model)}
    low = torch_fsdp.MixedPrecision(DTYPES[plan.dtype], reduce_dtype=DTYPES[plan.reduce_dtype])
    wrapped = FullyShardedDataParallel(
        model,
        device_mesh=_mesh(device.type, is_hybrid=False),
        sharding_strategy=FSDP1_STRATEGIES[plan.strategy],
        auto_wrap_policy=ModuleWrapPolicy(kinds) if plan.wrapping == p.PER_BLOCK else None,
        backward_prefetch=backward,
        forward_prefetch=forward,
        cpu_offload=torch_fsdp.CPUOffload(offload_params=True) if plan.offload else None,
        mixed_precision=None if plan.dtype == "fp32" else low,
        device_id=device,
        use_orig_params=True,
    )
    _checkpoint(wrapped, plan)  # within the units, which are separate modules here
    return wrapped


def _checkpoint(model: nn.Module, plan: Plan) -> None:
    """Keep only each block's input for backward, which recomputes the rest."""
    if plan.checkpointing:
        blocks = blocks_of(model)
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: module in blocks,
        )


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, CheckpointWrapper)]


# --- a wrapped model's passes -----------------------------------------------------------------------------------


def autocast(module: nn.Module, device: str, dtype: str) -> AbstractContextManager[Any]:
    """Return autocast; none for a module of FSDP, which casts by itself."""
    by_itself = isinstance(module, (FSDPModule, FullyShardedDataParallel))
    return nullcontext() if by_itself else precision.autocast(device, dtype)


def exchange(module: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Return a context for a micro-batch's passes that exchanges gradients, or only adds them up on each rank."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    elif not now and isinstance(module, (DistributedDataParallel, FullyShardedDataParallel)):
        return module.no_sync()
    return nullcontext()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flat_parameters(module: nn.Module) -> list[Any]:
    """Return FSDP1's flat parameters, one per unit with parameters."""
    units = FullyShardedDataParallel.fsdp_modules(module)
    return [unit._handle.flat_param for unit in units if unit._handle is not None]


# --- what a training is wrapped by ------------------------------------------------------------------------------

WRAPPERS: dict[type, str] = {
    nn.DataParallel: "DataParallel",
    DistributedDataParallel: "DDP",
    FullyShardedDataParallel: FSDP1,
    FSDPModule: FSDP2,
}


@dataclass(frozen=True)
class Sharded:
    """wrapped_by: a value of WRAPPERS, or none. units: FSDP units, each gathered as a whole; 0 without FSDP.

    local_share: fraction of all parameter elements that this rank stores.
    """

    wrapped_by: str
    units: int
    local_share: float


def sharded(model: nn.Module) -> Sharded:
    """Return how a model is wrapped and sharded; `model` as the training loop calls it, compiled or not.

    Reshards units first: without a backward pass, as in evaluation, the root stays gathered.
    """
    inner = getattr(model, "_orig_mod", model)
    wrapped_by = next((name for kind, name in WRAPPERS.items() if isinstance(inner, kind)), NONE)
    units = [module for module in model.modules() if isinstance(module, (FSDPModule, FullyShardedDataParallel))]
    for unit in units:
        if isinstance(unit, FSDPModule):
            unit.reshard()
    if flat := flat_parameters(model):
        sizes = [(parameter.numel(), parameter._unpadded_unsharded_size.numel()) for parameter in flat]
    else:
        sizes = [(local(parameter).numel(), parameter.numel()) for parameter in model.parameters()]
    here, whole = map(sum, zip(*sizes, strict=True))
    return Sharded(wrapped_by, len(units), here / whole)


def require(asked: str, model: nn.Module) -> Sharded:
    """Return the wrapping; RuntimeError if it is not the one asked for, or does not shard over several ranks."""
    wrapping = sharded(model)
    if wrapping.wrapped_by != asked:
        raise RuntimeError(f"{asked} was asked for, the model is wrapped by {wrapping.wrapped_by}")
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if asked in (FSDP1, FSDP2) and wrapping.local_share > 1.5 / ranks:
        raise RuntimeError(f"{asked} keeps {wrapping.local_share:.0%} of the parameters on a rank of {ranks}")
    return wrapping


# --- whether a plan took effect ---------------------------------------------------------------------------------

CLASSES = {
    p.SINGLE: "none",
    p.DDP: "DistributedDataParallel",
    p.FSDP1: "FullyShardedDataParallel",
    p.FSDP2: "fully_shard",
}


@dataclass(frozen=True)
class Applied:
    """Properties of a wrapped model.

    wrapper: the wrapping class, or none. strategy: in effect. replicas, shards: of its mesh. units: parts whose
    parameters are gathered together. dtype, reduce_dtype: of FSDP's mixed precision; fp32 without one, "autocast" if
    left to autocast. offload: whether FSDP keeps parameters on the CPU. checkpointed: number of blocks whose
    activations are recomputed. prefetch: as in Plan.
    """

    wrapper: str = CLASSES[p.SINGLE]
    strategy: str = p.SINGLE
    replicas: int = 1
    shards: int = 1
    units: int = 0
    dtype: str = "autocast"
    reduce_dtype: str = "fp32"
    offload: bool = False
    checkpointed: int = 0
    prefetch: str = p.IMPLICIT


def check(wrapped: Wrapped, world_size: int, blocks: int) -> Applied:
    """Return the module's properties; raises ValueError, naming the difference, unless they are as planned.

    blocks: number of the model's blocks. Raises ValueError too if the module's units differ.
    """
    applied, expected = _read(wrapped.module), _expected(wrapped.plan, world_size, blocks)
    for name, wanted in asdict(expected).items():
        if getattr(applied, name) != wanted:
            raise ValueError(f"asked for {name} {wanted}, but the wrapped model has {getattr(applied, name)}")
    return applied


def _expected(plan: Plan, world_size: int, blocks: int) -> Applied:
    is_fsdp = plan.api in (p.FSDP1, p.FSDP2)
    replicas, parts = p.shards(plan, world_size)
    return Applied(
        wrapper=CLASSES[plan.api],
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


def _read(module: nn.Module) -> Applied:
    applied = Applied()
    if isinstance(module, FullyShardedDataParallel):
        applied = _read_fsdp1(module)
    elif isinstance(module, DistributedDataParallel):
        applied = Applied(CLASSES[p.DDP], p.DDP, module.process_group.size())
    elif isinstance(module, FSDPModule):
        applied = _read_fsdp2(module)
    return replace(applied, checkpointed=len(_checkpointed(module)))


def _common(units: Iterable[Any], read: Callable[[Any], Any], what: str) -> Any:
    """Return what is read off each unit; raises ValueError if it differs."""
    values = {read(unit) for unit in units}
    if len(values) != 1:
        raise ValueError(f"{what} differs between the units of the wrapped model: {sorted(map(str, values))}")
    return values.pop()


def _dtypes(policy: Any) -> tuple[str, str]:
    """Return the names of the parameters' and the gradients' dtype."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return names[policy.param_dtype or torch.float32], names[policy.reduce_dtype or torch.float32]


def _read_fsdp2(module: nn.Module) -> Applied:
    wrapped: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
    states = [part._get_fsdp_state() for part in wrapped]
    groups = [group for state in states if (group := state._fsdp_param_group) is not None]
    if not all(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise ValueError("the wrapped model holds parameters that no unit of it shards")
    shape, _ = _common(module.parameters(), lambda shard: (shard.device_mesh.shape, str(shard.placements)), "the mesh")
    reshards = _common(groups, lambda group: group.post_forward_mesh_info is not None, "resharding after forward")
    strategy = p.HYBRID_SHARD if len(shape) == 2 else p.FULL_SHARD
    dtype, reduce_dtype = _common(groups, lambda group: _dtypes(group.mp_policy), "precision")
    forward = any(state._states_to_forward_prefetch for state in states)
    backward = any(state._states_to_backward_prefetch for state in states)
    return Applied(
        wrapper=CLASSES[p.FSDP2],
        strategy=strategy if reshards else p.SHARD_GRAD_OP,
        replicas=shape[0] if len(shape) == 2 else 1,
        shards=shape[-1],
        units=len(groups),
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        offload=_common(
            groups, lambda group: isinstance(group.offload_policy, torch_fsdp.CPUOffloadPolicy), "off-loading"
        ),
        prefetch={(True, True): p.BOTH, (True, False): p.FORWARD, (False, True): p.BACKWARD}.get(
            (forward, backward), p.IMPLICIT
        ),
    )


def _read_fsdp1(module: FullyShardedDataParallel) -> Applied:
    units = FullyShardedDataParallel.fsdp_modules(module)
    strategy = _common(units, lambda unit: unit.sharding_strategy.name.lower(), "the strategy")
    chosen = _common(units, lambda unit: (unit.backward_prefetch, unit.forward_prefetch), "prefetching")
    dtype, reduce_dtype = _common(units, lambda unit: _dtypes(unit.mixed_precision), "precision")
    group: Any = module.process_group
    return Applied(
        wrapper=CLASSES[p.FSDP1],
        strategy=strategy,
        shards=1 if strategy == p.NO_SHARD else group.size(),
        units=sum(unit._has_params for unit in units),
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        offload=_common(units, lambda unit: unit.cpu_offload.offload_params, "off-loading"),
        prefetch=next(name for name, pair in FSDP1_PREFETCH.items() if pair == chosen),
    )
