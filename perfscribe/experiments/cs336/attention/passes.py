"""Forward and backward of attention without a head axis, by any implementation, and their check against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perfscribe.attention.reference import Check
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import EAGER_TOLERANCE, require
from perfscribe.instruments.timing import Mark

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Passes:
    """Random q, k, v and gradient of the output, all of the same shape (batch, seq_len, head_dim)."""

    def __init__(self, shape: tuple[int, int, int], dtype: str, device: str) -> None:
        precision.set_matmul_precision(dtype)
        self._tolerance = EAGER_TOLERANCE[dtype]
        kind: dict[str, Any] = {"device": device, "dtype": precision.tensor_dtype(dtype)}
        self.leaves = tuple(torch.randn(shape, requires_grad=True, **kind) for _ in range(3))
        self.d_out = torch.randn(shape, **kind)

    def forget_gradients(self) -> None:
        """Free the gradients' memory."""
        for leaf in self.leaves:
            leaf.grad = None

    def both(self, attend: Attend, mark: Mark) -> None:
        """Run forward and backward, marking the end of each."""
        out = attend(*self.leaves)
        mark("forward")
        out.backward(self.d_out)
        mark("backward")

    def errors(self, attend: Attend, prefix: str = "") -> dict[str, float]:
        """Return relative errors of output, dq, dk and dv; WrongResult names one beyond the tolerance, with prefix."""
        check = Check(attend, self.leaves, is_causal=False)
        check.both()
        errors = check.errors()
        require({f"{prefix}{name}": error for name, error in errors.items()}, self._tolerance)
        return errors
