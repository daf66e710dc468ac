"""What the arguments of the flash-attention functions must be, and how they are told off."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

HEAD_DIMS = range(16, 129, 8)
HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, dtypes: Collection[torch.dtype], devices: Collection[str]
) -> None:
    """Refuse what attention over (batch, n, d) or (batch, heads, n, d) cannot take.

    ValueError, which names what was given: not tensors; ranks, batch, heads or head dimensions that differ; an empty
    dimension; a head dimension outside 16, 24, ... 128; a dtype or device not among those named, or differing ones;
    is_causal that is no bool.
    """
    named = {"Q": q, "K": k, "V": v}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if not isinstance(is_causal, bool):
        raise ValueError(f"is_causal must be True or False, not {is_causal!r}")
    _check_shapes(named)
    _check_kind("dtype", {name: t.dtype for name, t in named.items()}, dtypes)
    _check_kind("device", {name: t.device.type for name, t in named.items()}, devices)
    if len({t.device for t in named.values()}) > 1:
        raise ValueError("Q, K and V must be on one device, not " + _listed({n: t.device for n, t in named.items()}))


def _check_shapes(named: dict[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    given = _listed(shapes)
    if {len(shape) for shape in shapes.values()} not in ({3}, {4}):
        raise ValueError(f"Q, K and V must all be (batch, n, d) or all (batch, heads, n, d), not {given}")
    if any(size < 1 for shape in shapes.values() for size in shape):
        raise ValueError(f"no dimension of Q, K and V may be empty: {given}")
    q, k, v = shapes["Q"], shapes["K"], shapes["V"]
    if k != v:
        raise ValueError(f"K and V must have the same shape: {given}")
    if q[:-2] != k[:-2]:
        raise ValueError(f"Q, K and V must agree in batch and heads: {given}")
    if q[-1] != k[-1]:
        raise ValueError(f"Q, K and V must have the same head dimension: {given}")
    if q[-1] not in HEAD_DIMS:
        raise ValueError(f"the head dimension must be a multiple of 8 from 16 to 128, not {q[-1]}")


def _check_kind(what: str, kinds: Mapping[str, object], allowed: Collection[object]) -> None:
    if len(set(kinds.values())) > 1:
        raise ValueError(f"Q, K and V must have one {what}, not {_listed(kinds)}")
    if kinds["Q"] not in allowed:
        raise ValueError(f"{what} must be {' or '.join(map(str, allowed))}, not {kinds['Q']}")


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
