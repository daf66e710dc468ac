"""Forward and backward of attention without a head axis, by any implementation, and their check against float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from perfscribe.attention.reference import Check
from perfscribe.base.cells import Cell
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import EAGER_TOLERANCE, require
from perfscribe.instruments.timing import Mark

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Passes:
    """A cell's q, k, v and gradient of the output: random, all (batch, seq_len, head_dim)."""

    def __init__(self, cell: Cell) -> None:
        precision.set_matmul_precision(cell["dtype"])
        self._tolerance = EAGER_TOLERANCE[cell["dtype"]]
        shape = (cell["batch"], cell["seq_len"], cell["head_dim"])
        kind = {"device": cell["device"], "dtype": precision.tensor_dtype(cell["dtype"])}
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
