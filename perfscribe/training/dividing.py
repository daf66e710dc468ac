"""Divides a model among ranks by fully_shard, and checks that a model is divided as it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from perfscribe.training import wrapping

BLOCK_NAMES = ("BloomBlock", "TransformerEncoderLayer")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Divided:
    """wrapper: as training.wrapping names it. units: groups of parameters that are gathered at once.

    local_share: the part of all parameters' elements that lies on this rank.
    """

    wrapper: str
    units: int
    local_share: float


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The model's blocks, as the workshop's two models name them."""
    return (module for module in model.modules() if type(module).__name__ in BLOCK_NAMES)


def shard(model: nn.Module, dtype: str, reshard: bool = True) -> None:
    """Divide each block and the rest of the model among all ranks, in place (fully_shard).

    dtype: of gathered parameters and of reduced gradients, as accelerate has it; what each rank keeps stays fp32.
    """
    low = DTYPES[dtype]
    policy = MixedPrecisionPolicy() if dtype == "fp32" else MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
    for block in list(blocks(model)):
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy)


def read_off(model: nn.Module) -> Divided:
    """What has divided this model, from the model itself; `model` as the training loop calls it.

    Units are divided again first: without a backward pass, as in evaluation, the root stays gathered.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    parameters = list(model.parameters())
    whole = sum(parameter.numel() for parameter in parameters)
    here = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
    return Divided(wrapping.of_model(model), wrapping.units(model), here / whole if whole else 1.0)


def require(asked: str, model: nn.Module) -> Divided:
    """The wrapping, or RuntimeError where it is not the one asked for, or divides nothing among several ranks."""
    found = read_off(model)
    if found.wrapper != asked:
        raise RuntimeError(f"{asked} was asked for, the model is wrapped by {found.wrapper}")
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if asked == wrapping.FSDP2 and found.local_share > 1.5 / ranks:
        raise RuntimeError(f"{asked} keeps {found.local_share:.0%} of the parameters on a rank of {ranks}")
    return found
