"""Attention without a head axis, eager and compiled, each checked against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.base.cells import Cell
from perfscribe.experiments.torch_compile.pair import Pair
from perfscribe.instruments import precision
from perfscribe.instruments.compiling import as_implemented
from perfscribe.instruments.timing import Mark

# Query rows whose float64 matrices are held at a time.
ROWS_AT_ONCE = 1024
# Largest relative error (Frobenius norm) of the output and of each gradient that still counts as correct.
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Operands:
    """q, k, v with gradients and the gradient of the output, all (batch, seq_len, head_dim)."""

    q: Tensor
    k: Tensor
    v: Tensor
    d_out: Tensor

    def forget_gradients(self) -> None:
        """Set the gradients of q, k and v to None."""
        self.q.grad = self.k.grad = self.v.grad = None


def attention_pair(cell: Cell) -> Pair:
    """The cell's operands, and a forward and a backward pass over them both ways."""
    precision.set_matmul_precision(cell["dtype"])
    shape = (cell["batch"], cell["seq_len"], cell["head_dim"])
    kind = {"device": cell["device"], "dtype": precision.tensor_dtype(cell["dtype"])}
    operands = Operands(
        *(torch.randn(shape, requires_grad=name != "d_out", **kind) for name in ("q", "k", "v", "d_out"))
    )
    expected = float64_first_sequence(operands)
    eager = scaled_dot_product_attention
    attend = as_implemented(eager, cell["backend"], cell["implementation"])
    tolerance = TOLERANCE[cell["dtype"]]
    return Pair(
        eager=lambda mark: one_pass(eager, operands, mark),
        compiled=lambda mark: one_pass(attend, operands, mark),
        prepare=operands.forget_gradients,
        check_eager=lambda: errors("eager", eager, operands, expected, tolerance),
        check_compiled=lambda: errors("compiled", attend, operands, expected, tolerance),
        whole="both",
    )


def one_pass(attend: Attend, operands: Operands, mark: Mark) -> None:
    """Forward and backward."""
    out = attend(operands.q, operands.k, operands.v)
    mark("forward")
    out.backward(operands.d_out)
    mark("backward")


def float64_first_sequence(operands: Operands) -> dict[str, Tensor]:
    """Output and gradients of the first sequence of the batch in float64, (seq_len, head_dim) each, on the CPU.

    The queries are taken in parts: the gradients of k and v add up over them.
    """
    q, k, v, d_out = (x[0].detach().double() for x in (operands.q, operands.k, operands.v, operands.d_out))
    k.requires_grad_()
    v.requires_grad_()
    outs, d_qs = [], []
    for start in range(0, q.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = q[rows].clone().requires_grad_()
        out = torch.softmax(part @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
        out.backward(d_out[rows])
        assert part.grad is not None
        outs.append(out.detach())
        d_qs.append(part.grad)
    assert k.grad is not None and v.grad is not None
    found = {"output": torch.cat(outs), "dq": torch.cat(d_qs), "dk": k.grad, "dv": v.grad}
    return {name: tensor.cpu() for name, tensor in found.items()}  # so as to be in no peak of a GPU's memory


def errors(
    name: str, attend: Attend, operands: Operands, expected: dict[str, Tensor], tolerance: float
) -> dict[str, float]:
    """Relative errors of a pass, of which the first sequence counts; ValueError beyond the tolerance."""
    operands.forget_gradients()
    out = attend(operands.q, operands.k, operands.v)
    out.backward(operands.d_out)
    got = {"output": out, "dq": operands.q.grad, "dk": operands.k.grad, "dv": operands.v.grad}
    found = {}
    for part, tensor in got.items():
        assert tensor is not None
        found[part] = float((tensor[0].detach().cpu().double() - expected[part]).norm() / expected[part].norm())
    worst = max(found, key=lambda part: found[part])
    if not found[worst] <= tolerance:
        raise ValueError(f"{name}: {worst} is off by {found[worst]:.2g} against float64, allowed {tolerance:g}")
    return {f"{name}_{part}_error": error for part, error in found.items()}
