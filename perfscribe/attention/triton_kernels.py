"""FlashAttention-2 in Triton, forward and backward.

The algorithm is that of Dao, FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2. The kernels are in
triton_forward_kernels and triton_backward_kernels; tiles, variants, splits and the precision of fp32 products are
chosen in triton_configs. With TRITON_INTERPRET=1 in the environment before triton is first imported, all runs on CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from perfscribe.attention import triton_configs
from perfscribe.attention.checks import HALF_AND_SINGLE, check_arguments
from perfscribe.attention.triton_backward import backward
from perfscribe.attention.triton_forward import Problem, forward
from perfscribe.attention.triton_forward_kernels import forward_kernel
from perfscribe.attention.triton_operands import operand

INTERPRETED = not isinstance(forward_kernel, triton.runtime.JITFunction)
DEVICES = ("cpu", "cuda") if INTERPRETED else ("cuda",)


class FlashAttentionTriton(torch.autograd.Function):
    """softmax(Q Kᵀ / √d) V without an n × n matrix, in Triton, on a CUDA device (or interpreted)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Q (batch, n, d) or (batch, heads, n, d); K and V the same with m keys; returns the shape of Q, contiguous.

        is_causal: query i sees keys j ≤ i, aligned top left. fp32, bf16 or fp16, d a multiple of 8 from 16 to 128.
        Sums are in fp32; products of 16-bit tiles are exact in fp32, weights being rounded to 16 bits before they meet
        V; products of fp32 tiles are as triton_configs.float32_precision says. Kept for backward: Q, K, V, the output,
        and the log-sum-exp of each row of scores, fp32, (batch, n) or (batch, heads, n). ValueError: see
        checks.check_arguments.
        """
        check_arguments(q, k, v, is_causal, HALF_AND_SINGLE, DEVICES)
        ctx.problem = _problem(q, k, is_causal)
        out, logsumexp = forward(ctx.problem, operand(q), operand(k), operand(v))
        out, logsumexp = out.view(q.shape), logsumexp.view(q.shape[:-1])
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of Q, K, V, in their shapes and dtypes, contiguous, and None for is_causal."""
        q, k, v, out, logsumexp = ctx.saved_tensors
        d_out = operand(gradients[0].to(out.dtype))
        d_q, d_k, d_v = backward(ctx.problem, operand(q), operand(k), operand(v), out, logsumexp, d_out)
        return d_q.view(q.shape), d_k.view(k.shape), d_v.view(v.shape), None


def _problem(q: Tensor, k: Tensor, is_causal: bool) -> Problem:
    return Problem(
        batch=q.shape[0],
        heads=q.shape[1] if q.dim() == 4 else 1,
        n_queries=q.shape[-2],
        n_keys=k.shape[-2],
        head_dim=q.shape[-1],
        causal=is_causal,
        dtype=q.dtype,
        device=q.device,
        interpreted=INTERPRETED,
        settings=triton_configs.settings(),
    )
