"""Attention in plain PyTorch, and the check of an implementation against it in float64, cheap even at full length.

Float64 attention of all n queries would take an n x n matrix. The check takes CHECKED_ROWS queries, drawn at random,
and a gradient of the output that is zero in all other rows. Then dk and dv depend on the drawn queries only, and dq
must be zero in all other rows. All rows of dq, dk and dv are compared, but of the output only those drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfscribe.instruments.correctness import relative_error, require

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_ROWS = 64


def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return output (..., n, d) and log-sum-exp (..., n) of q (..., n, d), k and v (..., m, d).

    hidden (n, m): where a query does not see a key.
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


class Check:
    """Runs an implementation of self-attention and compares its last pass with float64.

    Call forward() or both(), then errors() or largest_error() once: these drop the results that they compare.
    attend: returns the output of q, k, v. leaves: q, k and v, which require gradients, all (..., n, d).
    rows: indices of the queries compared, at most CHECKED_ROWS, drawn at random when the object is made.
    """

    def __init__(
        self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], leaves: tuple[Tensor, ...], is_causal: bool
    ) -> None:
        import torch

        self._attend, self._leaves, self._is_causal = attend, leaves, is_causal
        q = leaves[0]
        self.rows = torch.randperm(q.shape[-2], device=q.device)[:CHECKED_ROWS]
        self._d_rows = torch.randn_like(q[..., self.rows, :])
        self._got: tuple[Tensor, ...] = ()

    def forward(self) -> None:
        """Run the forward pass and keep the checked rows of its output."""
        self._got = (self._attend(*self._leaves).detach()[..., self.rows, :],)

    def both(self) -> None:
        """Run both passes, with a gradient of the output that is zero except in the checked rows."""
        import torch

        d_out = torch.zeros_like(self._leaves[0])
        d_out[..., self.rows, :] = self._d_rows
        out = self._attend(*self._leaves)
        self._got = (out.detach()[..., self.rows, :], *torch.autograd.grad(out, self._leaves, d_out))

    def errors(self) -> dict[str, float]:
        """Return the last pass's relative errors (Frobenius norm): output, and dq, dk, dv if it ran backward.

        Drops the results compared: a second call returns {}.
        """
        got, self._got = self._got, ()
        names = ("output", "dq", "dk", "dv")
        return {name: relative_error(*pair) for name, *pair in zip(names, got, self._expected(), strict=False)}

    def largest_error(self, tolerance: float) -> dict[str, float]:
        """Return {"largest_relative_error": of the last pass, to 3 significant digits}, and drop the results.

        Raises WrongResult, which names the worst result, if its error is above the tolerance or NaN.
        """
        return {"largest_relative_error": float(f"{require(self.errors(), tolerance):.3g}")}

    def _expected(self) -> tuple[Tensor, ...]:
        """Return output in the checked rows, dq, dk and dv in float64."""
        import torch

        q, k, v = (leaf.detach().double().requires_grad_() for leaf in self._leaves)
        hidden = self.rows[:, None] < torch.arange(k.shape[-2], device=k.device) if self._is_causal else None
        out, _ = attention(q[..., self.rows, :], k, v, hidden)
        return out, *torch.autograd.grad(out, (q, k, v), self._d_rows.double())
