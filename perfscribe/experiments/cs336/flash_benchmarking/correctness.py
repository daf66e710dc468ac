"""Output and gradients of causal attention against float64, at full length and low cost.

Float64 attention of all rows would take an N x N matrix. But if the gradient of the output is zero except in a few
rows, all rows of the gradients of k and v follow from these rows of the matrix only; so do those of q, whose other rows
must be zero. This checks every tile of keys, and the query rows drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_ROWS = 64
# Largest relative error (Frobenius norm) of the output and of each gradient that still counts as correct. For fp32 it
# is between the errors of fp32 and TF32, so that no fp32 cell contains products of a single TF32 multiplication.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}


class Check:
    """Passes of causal self-attention, and their errors against float64.

    attend: returns the output of q, k, v, all (batch, heads, n, d). leaves: q, k and v, which require gradients.
    tolerance: the largest relative error (Frobenius norm) allowed.
    """

    def __init__(
        self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], leaves: tuple[Tensor, ...], tolerance: float
    ) -> None:
        import torch

        self._attend, self._leaves, self._tolerance = attend, leaves, tolerance
        q = leaves[0]
        self.rows = torch.randperm(q.shape[-2], device=q.device)[:CHECKED_ROWS]
        self._d_rows = torch.randn((*q.shape[:2], len(self.rows), q.shape[-1]), device=q.device, dtype=q.dtype)
        self._got: tuple[Tensor, ...] = ()

    def forward(self) -> None:
        """Run the forward pass and keep the checked rows of its output."""
        self._got = (self._attend(*self._leaves).detach()[:, :, self.rows],)

    def both(self) -> None:
        """Run both passes, with a gradient of the output that is zero except in the checked rows."""
        import torch

        d_out = torch.zeros_like(self._leaves[0])
        d_out[:, :, self.rows] = self._d_rows
        out = self._attend(*self._leaves)
        self._got = (out.detach()[:, :, self.rows], *torch.autograd.grad(out, self._leaves, d_out))

    def largest_error(self) -> dict[str, float]:
        """Return the last pass's largest relative error; ValueError names a result beyond the tolerance."""
        names = ("output", "dq", "dk", "dv")
        expected = self._expected()[: len(self._got)]
        errors = {
            name: float((got.double() - want).norm() / want.norm())
            for name, got, want in zip(names, self._got, expected, strict=False)
        }
        self._got = ()
        worst = max(errors, key=lambda name: (not errors[name] <= self._tolerance, errors[name]))
        if not errors[worst] <= self._tolerance:
            raise ValueError(f"{worst} is off by {errors[worst]:.2g} against float64, allowed {self._tolerance:g}")
        return {"largest_relative_error": float(f"{errors[worst]:.3g}")}

    def _expected(self) -> tuple[Tensor, ...]:
        """Return output in the checked rows, dq, dk and dv in float64."""
        import torch

        q, k, v = (leaf.detach().double() for leaf in self._leaves)
        rows = q[:, :, self.rows].requires_grad_()
        k, v = k.requires_grad_(), v.requires_grad_()
        hidden = self.rows[:, None] < torch.arange(k.shape[-2], device=k.device)
        scores = (rows @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        d_rows, dk, dv = torch.autograd.grad(out, (rows, k, v), self._d_rows.double())
        dq = torch.zeros_like(q)
        dq[:, :, self.rows] = d_rows
        return out.detach(), dq, dk, dv
