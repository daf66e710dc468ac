"""Shards a model over ranks by fully_shard, and detects how a model is wrapped and sharded.

Frameworks may silently ignore the request: on a CPU Trainer trains with plain DDP instead of FSDP, and with no wrapper
in a single process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

NONE, FSDP1, FSDP2 = "none", "FSDP1", "FSDP2"
WRAPPERS: dict[type, str] = {
    nn.DataParallel: "DataParallel",
    nn.parallel.DistributedDataParallel: "DDP",
    FullyShardedDataParallel: FSDP1,
    FSDPModule: FSDP2,
}
BLOCK_NAMES = ("BloomBlock", "TransformerEncoderLayer")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Divided:
    """wrapped_by: a value of WRAPPERS, or none. units: FSDP units, each gathered as a whole; 0 without FSDP.

    local_share: fraction of all parameter elements that this rank stores.
    """

    wrapped_by: str
    units: int
    local_share: float


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Transformer blocks of the workshop's two models, by class name."""
    return (module for module in model.modules() if type(module).__name__ in BLOCK_NAMES)


def shard(model: nn.Module, dtype: str) -> None:
    """Shard each block and the rest of the model over all ranks, in place (fully_shard).

    dtype: of gathered parameters and reduced gradients, as in accelerate; each rank's shards stay fp32.
    """
    low = DTYPES[dtype]
    policy = MixedPrecisionPolicy() if dtype == "fp32" else MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
    for block in list(blocks(model)):
        fully_shard(block, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mp_policy=policy)


def read_off(model: nn.Module) -> Divided:
    """Detect the wrapping and sharding of a model; `model` as the training loop calls it, compiled or not.

    Reshards units first: without a backward pass, as in evaluation, the root stays gathered.
    """
    inner = getattr(model, "_orig_mod", model)
    wrapped_by = next((name for kind, name in WRAPPERS.items() if isinstance(inner, kind)), NONE)
    units = [module for module in model.modules() if isinstance(module, (FSDPModule, FullyShardedDataParallel))]
    for unit in units:
        if isinstance(unit, FSDPModule):
            unit.reshard()
    flat = [unit._handle.flat_param for unit in units if isinstance(unit, FullyShardedDataParallel) and unit._handle]
    if flat:
        whole = sum(one._unpadded_unsharded_size.numel() for one in flat)
        return Divided(wrapped_by, len(units), sum(one.numel() for one in flat) / whole)
    parameters = list(model.parameters())
    whole = sum(parameter.numel() for parameter in parameters)
    here = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
    return Divided(wrapped_by, len(units), here / whole)


def require(asked: str, model: nn.Module) -> Divided:
    """Return the wrapping; RuntimeError if it is not the one asked for, or does not shard over several ranks."""
    found = read_off(model)
    if found.wrapped_by != asked:
        raise RuntimeError(f"{asked} was asked for, the model is wrapped by {found.wrapped_by}")
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if asked in (FSDP1, FSDP2) and found.local_share > 1.5 / ranks:
        raise RuntimeError(f"{asked} keeps {found.local_share:.0%} of the parameters on a rank of {ranks}")
    return found
