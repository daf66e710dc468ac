"""The backward pass in Triton: choice of variant, tiles and splits, and the launches."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from perfscribe.attention import triton_configs
from perfscribe.attention.triton_backward_kernels import dkdv_kernel, dq_kernel, prepare_kernel, sum_kernel
from perfscribe.attention.triton_forward import Problem
from perfscribe.attention.triton_operands import Operand, launch_options

Seen: TypeAlias = Literal["all", "up_to", "from"]  # splits in which a row has a part: see sum_kernel

PREPARED_ROWS = 16
SUMMED_ROWS = 16


def backward(
    problem: Problem, q: Operand, k: Operand, v: Operand, out: Tensor, logsumexp: Tensor, d_out: Operand
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ (batch, heads, n_queries, d), dK and dV (batch, heads, n_keys, d), in the inputs' dtype.

    out and logsumexp are those of the forward pass, contiguous; d_out has the shape of out.
    """
    length = max(problem.n_queries, problem.n_keys)
    variant = triton_configs.backward_for(problem.head_dim, length, problem.dtype, problem.settings.backward)
    operands = (q, k, v, d_out)
    if variant == "one_pass":
        peaks, deltas, dq_sum = row_terms(problem, out, logsumexp, d_out, problem.tile("one_pass").streamed, True)
        d_k, d_v = key_gradients(problem, "one_pass", operands, peaks, deltas, dq_sum)
        d_q = _summed(problem, dq_sum[None], problem.n_queries, "all", 1, 1, problem.scale)
        return d_q, d_k, d_v
    unit = max(problem.tile("dkdv").streamed, problem.tile("dq").own)
    peaks, deltas, _ = row_terms(problem, out, logsumexp, d_out, unit, False)
    d_k, d_v = key_gradients(problem, "dkdv", operands, peaks, deltas, None)
    return query_gradients(problem, operands, peaks, deltas), d_k, d_v


def row_terms(
    problem: Problem, out: Tensor, logsumexp: Tensor, d_out: Operand, unit: int, one_pass: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What the gradient kernels need of each row, and the zeros to which one pass adds dQ.

    Log-sum-exp in base 2 and rowsum(dO ∘ O), both (sequences, n_padded), n_padded being the queries in whole tiles of
    `unit` rows; and zeros (sequences, n_padded, d) if one_pass, else nothing of use.
    """
    unit = max(unit, PREPARED_ROWS)
    n_padded = triton.cdiv(problem.n_queries, unit) * unit
    shape = (problem.sequences, n_padded)
    peaks = torch.empty(shape, dtype=torch.float32, device=problem.device)
    deltas = torch.empty_like(peaks)
    dq_sum = torch.empty((*shape, problem.head_dim) if one_pass else 1, dtype=torch.float32, device=problem.device)
    prepare_kernel[(n_padded // PREPARED_ROWS * problem.sequences,)](
        out, d_out.tensor, logsumexp, peaks, deltas, dq_sum, *d_out.strides,
        problem.heads, problem.n_queries, n_padded, problem.head_dim,
        ROWS=PREPARED_ROWS, COLS=problem.cols, CLEAR_DQ=one_pass,
    )  # fmt: skip
    return peaks, deltas, dq_sum


def key_gradients(
    problem: Problem,
    kernel: Literal["one_pass", "dkdv"],
    operands: tuple[Operand, Operand, Operand, Operand],
    peaks: Tensor,
    deltas: Tensor,
    dq_sum: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """dK and dV; with dq_sum (sequences, n_padded, d), zero before, dQ / scale is added to it."""
    q, k, v, d_out = operands
    tile = problem.tile(kernel)
    programs = triton.cdiv(problem.n_keys, tile.own) * problem.sequences
    per_split = problem.split(kernel, SUMMED_ROWS)
    n_splits = triton.cdiv(problem.n_queries, per_split)
    whole = n_splits == 1
    shape = (problem.batch, problem.heads, problem.n_keys, problem.head_dim)
    d_k = torch.empty(
        shape if whole else (n_splits, *shape),
        dtype=problem.dtype if whole else torch.float32,
        device=problem.device,
    )
    d_v = torch.empty_like(d_k)
    manner, target = _dq_target(problem, tile, dq_sum)
    cols = problem.cols
    terms = [TensorDescriptor.from_tensor(x, [1, tile.streamed]) if tile.tma else x for x in (peaks, deltas)]
    dkdv_kernel[(programs, n_splits)](
        q.argument(tile.streamed, cols, tile.tma), k.argument(tile.own, cols, tile.tma),
        v.argument(tile.own, cols, tile.tma), d_out.argument(tile.streamed, cols, tile.tma),
        *terms, d_k, d_v, peaks if target is None else target,
        *q.strides, *k.strides, *v.strides, *d_out.strides,
        problem.heads, problem.sequences, problem.together, problem.n_queries, peaks.shape[-1], problem.n_keys,
        problem.head_dim, per_split, problem.scale, problem.factor,
        BLOCK_M=tile.streamed, BLOCK_N=tile.own, BLOCK_D=cols, CAUSAL=problem.causal, SPLIT=not whole,
        WHOLE_M=problem.n_queries % tile.streamed == 0, WHOLE_N=problem.n_keys % tile.own == 0,
        WHOLE_D=problem.head_dim == cols, TMA=tile.tma, DQ=manner,
        PRECISION=problem.precision, WIDEN=problem.widen, **launch_options(tile),
    )  # fmt: skip
    if whole:
        return d_k, d_v
    seen: Seen = "from" if problem.causal else "all"
    return (
        _summed(problem, d_k, problem.n_keys, seen, problem.n_queries, per_split),
        _summed(problem, d_v, problem.n_keys, seen, problem.n_queries, per_split),
    )


def _dq_target(problem: Problem, tile: triton_configs.Tile, dq_sum: Tensor | None) -> tuple[str, Any]:
    """How dQ is added up, and the kernel's argument for it; the interpreter has no TMA reduction."""
    if dq_sum is None:
        return "none", None
    if problem.settings.dq_sum == "tma" and tile.tma and not problem.interpreted:
        rows = dq_sum.view(-1, problem.head_dim)
        return "tma", TensorDescriptor.from_tensor(rows, [tile.streamed, problem.cols])
    return "atomics", dq_sum


def query_gradients(
    problem: Problem, operands: tuple[Operand, Operand, Operand, Operand], peaks: Tensor, deltas: Tensor
) -> Tensor:
    """dQ, in a pass of its own."""
    q, k, v, d_out = operands
    tile = problem.tile("dq")
    programs = triton.cdiv(problem.n_queries, tile.own) * problem.sequences
    per_split = problem.split("dq", SUMMED_ROWS)
    n_splits = triton.cdiv(problem.n_keys, per_split)
    whole = n_splits == 1
    shape = (problem.batch, problem.heads, problem.n_queries, problem.head_dim)
    d_q = torch.empty(
        shape if whole else (n_splits, *shape),
        dtype=problem.dtype if whole else torch.float32,
        device=problem.device,
    )
    cols = problem.cols
    dq_kernel[(programs, n_splits)](
        q.argument(tile.own, cols, tile.tma), k.argument(tile.streamed, cols, tile.tma),
        v.argument(tile.streamed, cols, tile.tma), d_out.argument(tile.own, cols, tile.tma),
        peaks, deltas, d_q, *q.strides, *k.strides, *v.strides, *d_out.strides,
        problem.heads, problem.sequences, problem.together, problem.n_queries, peaks.shape[-1], problem.n_keys,
        problem.head_dim, per_split, problem.scale, problem.factor,
        BLOCK_M=tile.own, BLOCK_N=tile.streamed, BLOCK_D=cols, CAUSAL=problem.causal, SPLIT=not whole,
        WHOLE_M=problem.n_queries % tile.own == 0, WHOLE_N=problem.n_keys % tile.streamed == 0,
        WHOLE_D=problem.head_dim == cols, TMA=tile.tma,
        PRECISION=problem.precision, WIDEN=problem.widen, **launch_options(tile),
    )  # fmt: skip
    seen: Seen = "up_to" if problem.causal else "all"
    return d_q if whole else _summed(problem, d_q, problem.n_queries, seen, problem.n_keys, per_split)


def _summed(
    problem: Problem,
    parts: Tensor,
    n_rows: int,
    seen: Seen,
    n_streamed: int,
    per_split: int,
    scale: float = 1.0,
) -> Tensor:
    """scale · the sum over splits of parts (splits, …, rows, d), in the inputs' dtype, as (batch, heads, n_rows, d)."""
    shape = (problem.batch, problem.heads, n_rows, problem.head_dim)
    total = torch.empty(shape, dtype=problem.dtype, device=problem.device)
    sum_kernel[(triton.cdiv(n_rows, SUMMED_ROWS) * problem.sequences,)](
        parts, total, problem.sequences, n_rows, parts.shape[-2], problem.head_dim, n_streamed, per_split,
        parts.shape[0], scale, ROWS=SUMMED_ROWS, COLS=problem.cols, SEEN=seen,
    )  # fmt: skip
    return total
