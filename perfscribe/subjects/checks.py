"""Correctness before time: compares a subject's results with a reference."""

from __future__ import annotations

import torch
from torch import Tensor

from perfscribe.subjects.loading import WrongResult


def require_close(what: str, got: Tensor | None, want: Tensor, allowed: float, where: str) -> float:
    """Return the relative error (Frobenius norm). WrongResult: above `allowed`, not finite, wrong shape, or missing."""
    if got is None or got.shape != want.shape:
        shape = "missing" if got is None else f"of shape {tuple(got.shape)}"
        raise WrongResult(f"{what} is {shape} at {where}; expected {tuple(want.shape)}")
    got, want = got.detach().double(), want.detach().double()
    error = float((got - want).norm() / want.norm())
    if not error <= allowed:
        worst = int(torch.nan_to_num(got - want, nan=torch.inf).abs().argmax())
        values = f"{float(got.flatten()[worst]):.4g} in place of {float(want.flatten()[worst]):.4g}"
        raise WrongResult(f"{what} off by {error:.2g} at {where}; allowed {allowed:g}; worst element {values}")
    return error
