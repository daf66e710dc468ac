"""Comparison of a result with a reference, mostly in float64, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Largest relative error (Frobenius norm) of products, and of attention's output and gradients. For fp32 it is between
# the errors of fp32 and TF32, so that no fp32 cell contains products of a single TF32 multiplication.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}
# The same of attention by PyTorch's own products, eager or compiled.
EAGER_TOLERANCE = TOLERANCE | {"fp32": 1e-5}
# Largest relative error of a loss. bf16 output rounds the loss itself to 2**-9.
LOSS_TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "fp16": 2e-3}


class WrongResult(ValueError):
    """A result differs from its reference; the message has the place and the error."""


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Return the Frobenius norm of the difference over that of `expected`, both in float64."""
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / expected.norm())


def require(errors: Mapping[str, float], allowed: float, against: str = "float64") -> float:
    """Return the largest error; raises WrongResult, which names it, if it is above `allowed` or not a number."""
    worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    if not errors[worst] <= allowed:
        raise WrongResult(f"{worst} is off by {errors[worst]:.2g} against {against}, allowed {allowed:g}")
    return errors[worst]


def loss_error(got: float, expected: float, dtype: str) -> dict[str, float]:
    """Return the relative error of a loss against float64; raises WrongResult beyond the dtype's tolerance."""
    return {"loss_relative_error": require({"loss": abs(got / expected - 1)}, LOSS_TOLERANCE[dtype])}


def require_close(what: str, got: Tensor | None, want: Tensor, allowed: float, where: str) -> float:
    """Return the relative error of a subject's result; raises WrongResult.

    The message has the place and both values of the worst element, or the shape if that is wrong.
    """
    if got is None or got.shape != want.shape:
        shape = "missing" if got is None else f"of shape {tuple(got.shape)}"
        raise WrongResult(f"{what} is {shape} at {where}; expected {tuple(want.shape)}")
    error = relative_error(got, want)
    if not error <= allowed:
        got, want = got.detach().double().flatten(), want.detach().double().flatten()
        worst = int((got - want).nan_to_num(nan=math.inf).abs().argmax())
        values = f"{float(got[worst]):.4g} in place of {float(want[worst]):.4g}"
        raise WrongResult(f"{what} off by {error:.2g} at {where}; allowed {allowed:g}; worst element {values}")
    return error
