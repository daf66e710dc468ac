"""Launches of the Gluon kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import triton
from torch import Tensor

from perfscribe.attention.gluon_kernels import GROUP_COLS, ROWS, backward_kernel, forward_kernel
from perfscribe.attention.gluon_tiles import GROUP_ROWS, HALF_BOX, LINE, SINGLE
from perfscribe.attention.triton_launches import Box, Launch, Layout

if TYPE_CHECKING:
    from perfscribe.attention.triton_forward import Problem


def forward(problem: Problem, q: Layout, k: Layout, v: Layout) -> Launch:
    """Return a launch on (Q, K, V, output, log-sum-exp)."""
    cols = _cols(problem)
    return Launch(
        forward_kernel,
        (triton.cdiv(problem.n_queries, ROWS.value) * problem.sequences,),
        (_box(q, GROUP_ROWS.value, cols), *(_box(x, ROWS.value, cols) for x in (k, v)), _result(q, cols), None),
        (problem.heads, problem.sequences, problem.together, problem.n_queries, problem.n_keys, problem.factor),
        {"COLS": cols, "CAUSAL": problem.causal},
        num_warps=4,
    )


def backward(
    problem: Problem, layouts: tuple[Layout, Layout, Layout, Layout], n_padded: int
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a call (Q, K, V, dO, terms, dq_sum) that returns (dK, dV) and adds dQ / scale to dq_sum."""
    q, k, v, d_out = layouts
    cols = _cols(problem)
    queries = ROWS.value if cols == 64 else GROUP_ROWS.value  # as registers allow
    n_rows, d = problem.sequences * n_padded, problem.head_dim
    terms = ((2 * problem.sequences, n_padded), (n_padded, 1), [1, queries], LINE.value)
    dq_sum = ((n_rows, d), (d, 1), [GROUP_ROWS.value, GROUP_COLS.value], SINGLE.value)
    launch = Launch(
        backward_kernel,
        (triton.cdiv(problem.n_keys, ROWS.value) * problem.sequences,),
        (
            _box(q, queries, cols), _box(k, ROWS.value, cols), _box(v, ROWS.value, cols), _box(d_out, queries, cols),
            terms, dq_sum, _result(k, cols), _result(k, cols),
        ),
        (
            problem.heads, problem.sequences, problem.together, problem.n_queries, n_padded, problem.n_keys,
            problem.scale, problem.factor,
        ),
        {"COLS": cols, "QUERIES": queries, "CAUSAL": problem.causal},
        num_warps=4,
    )  # fmt: skip
    shape = (*problem.leading, problem.n_keys, problem.head_dim)

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        d_k, d_v = problem.empty(*shape, dtype=problem.dtype), problem.empty(*shape, dtype=problem.dtype)
        launch(*tensors, d_k, d_v)
        return d_k, d_v

    return call


def _cols(problem: Problem) -> int:
    return max(64, problem.cols)


def _box(layout: Layout, rows: int, cols: int) -> Box:
    return (layout.shape, [*layout.strides, 1], [1, 1, rows, cols], HALF_BOX)


def _result(layout: Layout, cols: int) -> Box:
    """Box of a contiguous tensor of the layout's shape, which a group writes."""
    contiguous = [math.prod(layout.shape[i:]) for i in (1, 2, 3, 4)]
    return (layout.shape, contiguous, [1, 1, GROUP_ROWS.value, cols], HALF_BOX)
