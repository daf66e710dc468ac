"""FlashAttention-2 in Triton (Dao, arXiv 2307.08691, algorithms 1 and 2) as an autograd function.

Here: the function, its cached launches, operators for torch.compile. Kernels are in triton_forward_kernels and
triton_backward_kernels; triton_configs chooses tiles, variants, splits and the precision of fp32 products. With
TRITON_INTERPRET=1 in the environment before triton is first imported, everything runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from perfscribe.attention import triton_configs
from perfscribe.attention.checks import HALF_AND_SINGLE, check_arguments
from perfscribe.attention.triton_backward import Gradients, backward
from perfscribe.attention.triton_forward import Problem, forward
from perfscribe.attention.triton_forward_kernels import forward_kernel
from perfscribe.attention.triton_launches import layout_of, place, raw_strides, readable

INTERPRETED = not isinstance(forward_kernel, triton.runtime.JITFunction)
DEVICES = ("cpu", "cuda") if INTERPRETED else ("cuda",)
MOST_PLANS = 1024


class FlashAttentionTriton(torch.autograd.Function):
    """softmax(Q Kᵀ / √d) V without an n × n matrix, in Triton, on a CUDA device (or interpreted)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Return softmax(Q Kᵀ / √d) V in the shape and dtype of Q, contiguous.

        Q is (batch, n, d) or (batch, heads, n, d), K and V the same with m keys; all fp32, bf16 or fp16, d a multiple
        of 8 from 16 to 128. is_causal: query i sees keys j ≤ i, aligned top left. Sums are in fp32; products of two
        16-bit numbers are exact in fp32, but weights are rounded to 16 bits before they multiply V; for products of
        fp32 tiles see triton_configs.float32_precision. Saved for backward: Q, K, V, the output, and the log-sum-exp
        of each row of scores, fp32, (batch, n) or (batch, heads, n). Raises ValueError: see checks.check_arguments.
        """
        if torch.compiler.is_compiling():
            ctx.is_causal = is_causal
            out, logsumexp = _compiled_forward(q, k, v, is_causal)
        else:
            ctx.plan = _plan(q, k, v, is_causal)
            out, logsumexp = ctx.plan.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of Q, K, V, in their shapes and dtypes, contiguous, and None for is_causal."""
        if torch.compiler.is_compiling():
            return (*_compiled_backward(*ctx.saved_tensors, *gradients, ctx.is_causal), None)
        return (*ctx.plan.backward(*ctx.saved_tensors, *gradients), None)


class Plan:
    """Prepared launches for all calls alike in shapes, dtype, device, layout, is_causal and settings.

    A kernel is compiled when it is first launched.
    """

    def __init__(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> None:
        layouts = [layout_of(tensor) for tensor in (q, k, v)]
        self._problem = problem
        self._forward = _on_readable([layout.copied for layout in layouts], forward(problem, *layouts))
        self._backwards: dict[Any, Callable[..., Gradients]] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and log-sum-exp."""
        return self._forward(q, k, v)  # type: ignore[no-any-return]

    def backward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor) -> Gradients:
        """Return the gradients of Q, K and V, by launches for the strides that the tensors have now.

        Those of dO are not known before; hooks of saved tensors may have changed those of Q, K and V since forward.
        """
        if d_out.dtype != out.dtype:
            d_out = d_out.to(out.dtype)
        kind = place(q), place(k), place(v), place(d_out), torch.are_deterministic_algorithms_enabled()
        call = self._backwards.get(kind)
        if call is None:
            layouts = [layout_of(tensor) for tensor in (q, k, v, d_out)]
            call = backward(self._problem, layouts, raw_strides(d_out))  # type: ignore[arg-type]
            call = self._backwards[kind] = _on_readable([layout.copied for layout in layouts[:3]], call)
        return call(q, k, v, out, logsumexp, d_out)


def _on_readable(copied: list[bool], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` that first makes aligned, contiguous copies of the leading tensors which `copied` marks."""
    if not any(copied):
        return call

    def on_copies(*tensors: Tensor) -> Any:
        first = (readable(tensor) if copy else tensor for tensor, copy in zip(tensors, copied, strict=False))
        return call(*first, *tensors[len(copied) :])

    return on_copies


_plans: dict[Any, Plan] = {}


def _plan(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Plan:
    """Return the plan for such tensors under the current settings; raises ValueError: see checks.check_arguments."""
    precision, settings = torch.get_float32_matmul_precision(), triton_configs.settings()
    try:
        kind = _kind(q), _kind(k), _kind(v), is_causal, type(is_causal), precision, settings
        return _plans[kind]
    except (AttributeError, KeyError, TypeError):
        check_arguments(q, k, v, is_causal, HALF_AND_SINGLE, DEVICES)
    problem = Problem(
        leading=tuple(q.shape[:-2]),
        n_queries=q.shape[-2],
        n_keys=k.shape[-2],
        head_dim=q.shape[-1],
        causal=is_causal,
        dtype=q.dtype,
        # "tf32" is Triton's default and has no effect on 16-bit factors
        precision=triton_configs.float32_precision(settings.float32_products) if q.dtype == torch.float32 else "tf32",
        device=q.device,
        interpreted=INTERPRETED,
        settings=settings,
    )
    if len(_plans) >= MOST_PLANS:
        _plans.clear()
    plan = _plans[kind] = Plan(problem, q, k, v)
    return plan


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, place(tensor)


# Custom operators, which torch.compile keeps opaque in its graph; they use the settings at run time.


@torch.library.custom_op(
    "perfscribe::flash_forward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool causal) -> (Tensor, Tensor)",
)
def _compiled_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return _plan(q, k, v, is_causal).forward(q, k, v)


@_compiled_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op(
    "perfscribe::flash_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp, Tensor d_out, bool causal) "
    "-> (Tensor, Tensor, Tensor)",
)
def _compiled_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor, is_causal: bool
) -> Gradients:
    return _plan(q, k, v, is_causal).backward(q, k, v, out, logsumexp, d_out)


@_compiled_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
