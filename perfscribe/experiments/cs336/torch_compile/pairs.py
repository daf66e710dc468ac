"""The same work eager and compiled, with checks of both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from perfscribe.attention.eager import scaled_dot_product_attention
from perfscribe.base.cells import Cell
from perfscribe.instruments import precision
from perfscribe.instruments.compiling import compiled
from perfscribe.instruments.timing import Mark
from perfscribe.models import loss_check
from perfscribe.models.training_step import Step, build
from perfscribe.models.transformer import Model

# Query rows whose float64 matrices are held at once.
ROWS_AT_ONCE = 1024
# Largest relative error (Frobenius norm) of attention's output and of each gradient that still counts as correct.
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}
# The same for a weight's gradient in a model, against eager's. Both are rounded through all layers, so this only
# detects wrong programs.
GRADIENT_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 2e-1, "fp16": 5e-2}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Operands = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, which require gradients, and the gradient of the output


@dataclass(frozen=True)
class Pair:
    """Eager and compiled variants, called with mark(name), which they call at the end of each phase.

    prepare: runs before every pass, untimed.
    check_eager, check_compiled: return errors by name, raise ValueError if one is too large; check_eager comes first.
    whole: name of the sample of a whole pass.
    """

    eager: Callable[[Mark], object]
    compiled: Callable[[Mark], object]
    prepare: Callable[[], object]
    check_eager: Callable[[], dict[str, float]]
    check_compiled: Callable[[], dict[str, float]]
    whole: str


def attention_pair(cell: Cell) -> Pair:
    """Return forward and backward of attention without a head axis, all tensors (batch, seq_len, head_dim)."""
    precision.set_matmul_precision(cell["dtype"])
    shape = (cell["batch"], cell["seq_len"], cell["head_dim"])
    kind = {"device": cell["device"], "dtype": precision.tensor_dtype(cell["dtype"])}
    q, k, v = (torch.randn(shape, requires_grad=True, **kind) for _ in range(3))
    d_out = torch.randn(shape, **kind)
    expected = float64_first_sequence((q, k, v, d_out))
    attend = compiled(scaled_dot_product_attention, cell["backend"])

    def forget_gradients() -> None:
        q.grad = k.grad = v.grad = None

    def one_pass(attend: Attend, mark: Mark) -> None:
        out = attend(q, k, v)
        mark("forward")
        out.backward(d_out)
        mark("backward")

    def errors(name: str, attend: Attend) -> dict[str, float]:
        forget_gradients()
        out = attend(q, k, v)
        out.backward(d_out)
        got = {"output": out, "dq": q.grad, "dk": k.grad, "dv": v.grad}
        found = {part: _relative(cast(Tensor, x)[0].detach().cpu(), expected[part]) for part, x in got.items()}
        worst = max(found, key=lambda part: found[part])
        _refuse(found[worst], TOLERANCE[cell["dtype"]], f"{name}: {worst}", "float64")
        return {f"{name}_{part}_error": error for part, error in found.items()}

    return Pair(
        eager=lambda mark: one_pass(scaled_dot_product_attention, mark),
        compiled=lambda mark: one_pass(attend, mark),
        prepare=forget_gradients,
        check_eager=lambda: errors("eager", scaled_dot_product_attention),
        check_compiled=lambda: errors("compiled", attend),
        whole="both",
    )


def float64_first_sequence(operands: Operands) -> dict[str, Tensor]:
    """Return output and gradients of the batch's first sequence in float64, (seq_len, head_dim) each, on the CPU.

    Queries are processed in parts, over which the gradients of k and v accumulate.
    """
    q, k, v, d_out = (x[0].detach().double() for x in operands)
    k.requires_grad_()
    v.requires_grad_()
    outs, d_qs = [], []
    for part, d_part in zip(q.split(ROWS_AT_ONCE), d_out.split(ROWS_AT_ONCE), strict=True):
        part = part.clone().requires_grad_()
        out = torch.softmax(part @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
        out.backward(d_part)
        outs.append(out.detach())
        d_qs.append(cast(Tensor, part.grad))
    found = {"output": torch.cat(outs), "dq": torch.cat(d_qs), "dk": k.grad, "dv": v.grad}
    return {name: cast(Tensor, x).cpu() for name, x in found.items()}  # on the CPU, to keep out of the GPU's peak


def model_pair(cell: Cell) -> Pair:
    """Return a training step with the model eager and compiled; both share the optimizer."""
    step = build(cell.factors, cell.data_folder)
    step.make_optimizer()
    other = copy.copy(step)  # the same parameters and optimizer, another forward
    other.model = compiled(step.model, cell["backend"])
    return Pair(
        eager=step.full,
        compiled=other.full,
        prepare=step.zero_grad,
        check_eager=lambda: loss_check.check_loss(step),
        check_compiled=lambda: compare(step, other),
        whole="full_step",
    )


def compare(eager: Step, other: Step) -> dict[str, float]:
    """Return relative errors of the other's loss and some gradients against eager's; ValueError beyond tolerance."""
    expected_loss, expected = _loss_and_gradients(eager, eager.model)
    loss, gradients = _loss_and_gradients(other, eager.model)
    loss_error = abs(loss - expected_loss) / expected_loss
    _refuse(loss_error, precision.LOSS_TOLERANCE[eager.dtype], "compiled: the loss", "eager")
    worst = max(_relative(got, want) for got, want in zip(gradients, expected, strict=True))
    _refuse(worst, GRADIENT_TOLERANCE[eager.dtype], "compiled: a gradient", "eager")
    return {"compiled_loss_error": loss_error, "compiled_gradient_error": worst}


def _loss_and_gradients(step: Step, model: Model) -> tuple[float, list[Tensor]]:
    """Return the batch's loss, and copies of one weight's gradient in the first and one in the last block."""
    model.zero_grad(set_to_none=True)
    loss = step.loss()
    loss.backward()
    watched = (
        model.blocks[0].get_parameter("attention.q.weight"),
        model.blocks[-1].get_parameter("feed_forward.w2.weight"),
    )
    gradients = [cast(Tensor, weight.grad).clone() for weight in watched]
    value = float(loss.detach())
    model.zero_grad(set_to_none=True)
    return value, gradients


def _relative(got: Tensor, expected: Tensor) -> float:
    return float((got.to(expected.dtype) - expected).norm() / expected.norm())


def _refuse(error: float, allowed: float, what: str, against: str) -> None:
    if not error <= allowed:
        raise ValueError(f"{what} is off by {error:.2g} against {against}, allowed {allowed:g}")
