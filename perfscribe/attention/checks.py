"""Checks of the arguments of the flash-attention functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

HEAD_DIMS = range(16, 129, 8)
HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, dtypes: Collection[torch.dtype], devices: Collection[str]
) -> None:
    """Reject arguments that attention over (batch, n, d) or (batch, heads, n, d) cannot take.

    Raises ValueError, showing the arguments: not tensors; ranks, batch, heads or head dimensions that differ; an empty
    dimension; a head dimension outside 16, 24, ... 128; differing or unsupported dtypes or devices; is_causal not a
    bool.
    """
    named = {"Q": q, "K": k, "V": v}
    for name, tensor in named.items():
        _must(isinstance(tensor, Tensor), f"{name} must be a tensor, not {type(tensor).__name__}")
    _must(isinstance(is_causal, bool), f"is_causal must be True or False, not {is_causal!r}")
    shapes = [tuple(tensor.shape) for tensor in named.values()]
    given = _listed(named, shapes)
    sizes = {len(shape) for shape in shapes}
    _must(sizes in ({3}, {4}), f"Q, K and V must all be (batch, n, d) or all (batch, heads, n, d), not {given}")
    _must(all(map(all, shapes)), f"no dimension of Q, K and V may be empty: {given}")
    _must(shapes[1] == shapes[2], f"K and V must have the same shape: {given}")
    _must(shapes[0][:-2] == shapes[1][:-2], f"Q, K and V must agree in batch and heads: {given}")
    _must(shapes[0][-1] == shapes[1][-1], f"Q, K and V must have the same head dimension: {given}")
    _must(q.shape[-1] in HEAD_DIMS, f"the head dimension must be a multiple of 8 from 16 to 128, not {q.shape[-1]}")
    for what, kinds, allowed in (
        ("dtype", [tensor.dtype for tensor in named.values()], dtypes),
        ("device", [tensor.device.type for tensor in named.values()], devices),
    ):
        _must(len(set(kinds)) == 1, f"Q, K and V must have one {what}, not {_listed(named, kinds)}")
        _must(kinds[0] in allowed, f"{what} must be {' or '.join(map(str, allowed))}, not {kinds[0]}")
    places = [tensor.device for tensor in named.values()]
    _must(len(set(places)) == 1, f"Q, K and V must be on one device, not {_listed(named, places)}")


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _listed(names: Iterable[str], values: Iterable[object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
