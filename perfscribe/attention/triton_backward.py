"""The backward pass in Triton: choice of variant, tiles and splits, and the launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import triton
from torch import Tensor

from perfscribe.attention import triton_configs
from perfscribe.attention.triton_backward_kernels import dkdv_kernel, dq_kernel, prepare_kernel, sum_kernel
from perfscribe.attention.triton_forward import Problem
from perfscribe.attention.triton_launches import Box, Launch, Layout

Seen: TypeAlias = Literal["all", "up_to", "from"]  # splits in which a row has a part: see sum_kernel
Layouts: TypeAlias = tuple[Layout, Layout, Layout, Layout]  # of Q, K, V and dO
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor]

PREPARED_ROWS = 16
SUMMED_ROWS = 16


def backward(
    problem: Problem, layouts: Layouts, d_out_strides: tuple[int, int, int, int]
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]:
    """A call (Q, K, V, output, log-sum-exp, dO) that returns dQ, dK and dV in the inputs' shapes and dtype, contiguous.

    Output and log-sum-exp are the forward pass's. dO is read through d_out_strides, and copied if its layout says so.
    """
    length = max(problem.n_queries, problem.n_keys)
    variant = triton_configs.backward_for(problem.head_dim, length, problem.dtype, problem.settings.backward)
    one_pass = variant == "one_pass"
    units = [problem.tile("one_pass").streamed] if one_pass else [problem.tile("dkdv").streamed, problem.tile("dq").own]
    n_padded = padded(problem, max(units))
    prepare = row_terms(problem, n_padded, d_out_strides, layouts[3].copied, one_pass)
    key_gradients = gradients_of_keys(problem, "one_pass" if one_pass else "dkdv", layouts, n_padded)
    if one_pass:
        scaled = _summed(problem, problem.n_queries, n_padded, "all", 1, 1, 1, problem.scale)

    def in_one(q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor) -> Gradients:
        terms, d_out, dq_sum = prepare(out, logsumexp, d_out)
        d_k, d_v = key_gradients(q, k, v, d_out, terms, dq_sum)
        return scaled(dq_sum)[0], d_k, d_v

    if one_pass:
        return in_one
    query_gradients = gradients_of_queries(problem, layouts, n_padded)

    def in_two(q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor) -> Gradients:
        terms, d_out, unused = prepare(out, logsumexp, d_out)
        d_k, d_v = key_gradients(q, k, v, d_out, terms, unused)
        return query_gradients(q, k, v, d_out, terms), d_k, d_v

    return in_two


def padded(problem: Problem, unit: int) -> int:
    """The queries in whole tiles of `unit` rows."""
    unit = max(unit, PREPARED_ROWS)
    return int(triton.cdiv(problem.n_queries, unit)) * unit


def row_terms(
    problem: Problem, n_padded: int, d_out_strides: tuple[int, int, int, int], copied: bool, one_pass: bool
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """A call (output, log-sum-exp, dO) that returns what the gradient kernels need beside Q, K and V.

    The terms: log-sum-exp in base 2 and rowsum(dO ∘ O), (2, sequences, n_padded). dO, or its contiguous copy. The zeros
    (sequences, n_padded, d) to which one pass adds dQ, or nothing of use.
    """
    shape = (problem.sequences, n_padded)
    launch = Launch(
        prepare_kernel,
        (n_padded // PREPARED_ROWS * problem.sequences,),
        (None,) * 6,
        (*d_out_strides, problem.heads, problem.sequences, problem.n_queries, n_padded, problem.head_dim),
        {"ROWS": PREPARED_ROWS, "COLS": problem.cols, "CLEAR_DQ": one_pass, "COPY": copied},
    )

    def call(out: Tensor, logsumexp: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        terms = problem.empty(2, *shape)
        dq_sum = problem.empty(*shape, problem.head_dim) if one_pass else terms
        copy = problem.empty(*out.shape, dtype=problem.dtype) if copied else d_out
        launch(out, d_out, logsumexp, terms, dq_sum, copy)
        return terms, copy, dq_sum

    return call


def gradients_of_keys(
    problem: Problem, kernel: Literal["one_pass", "dkdv"], layouts: Layouts, n_padded: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A call (Q, K, V, dO, and terms and zeros of row_terms) that returns dK and dV.

    "one_pass": it adds dQ / scale to the zeros.
    """
    q, k, v, d_out = layouts
    tile, cols = problem.tile(kernel), problem.cols
    per_split = problem.split(kernel, SUMMED_ROWS)
    n_splits = triton.cdiv(problem.n_queries, per_split)
    whole = n_splits == 1
    manner, dq_box = _dq_target(problem, kernel, tile, n_padded)
    terms: Box | None = ((2 * problem.sequences, n_padded), (n_padded, 1), [1, tile.streamed]) if tile.tma else None
    launch = Launch(
        dkdv_kernel,
        (triton.cdiv(problem.n_keys, tile.own) * problem.sequences, n_splits),
        (
            q.box(tile.streamed, cols, tile.tma), k.box(tile.own, cols, tile.tma), v.box(tile.own, cols, tile.tma),
            d_out.box(tile.streamed, cols, tile.tma), terms, dq_box, None, None,
        ),
        (
            *q.strides, *k.strides, *v.strides, *d_out.strides, problem.heads, problem.sequences, problem.together,
            problem.n_queries, n_padded, problem.n_keys, problem.head_dim, per_split, problem.scale, problem.factor,
            1.0,
        ),
        {
            "BLOCK_M": tile.streamed, "BLOCK_N": tile.own, "BLOCK_D": cols, "CAUSAL": problem.causal,
            "SPLIT": not whole, "WHOLE_M": problem.n_queries % tile.streamed == 0,
            "WHOLE_N": problem.n_keys % tile.own == 0, "WHOLE_D": problem.head_dim == cols, "TMA": tile.tma,
            "HELD": tile.held, "DQ": manner, "PRECISION": problem.precision, "WIDEN": problem.widen,
        },
        tile,
    )  # fmt: skip
    seen: Seen = "from" if problem.causal else "all"
    summed = _summed(problem, problem.n_keys, problem.n_keys, seen, problem.n_queries, per_split, n_splits)
    shape = (*problem.leading, problem.n_keys, problem.head_dim)

    def at_once(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        d_k, d_v = problem.empty(*shape, dtype=problem.dtype), problem.empty(*shape, dtype=problem.dtype)
        launch(*tensors, d_k, d_v)
        return d_k, d_v

    def in_splits(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        parts_k, parts_v = problem.empty(n_splits, *shape), problem.empty(n_splits, *shape)
        launch(*tensors, parts_k, parts_v)
        d_k, d_v = summed(parts_k, parts_v)
        return d_k, d_v

    return at_once if whole else in_splits


def _dq_target(problem: Problem, kernel: str, tile: triton_configs.Tile, n_padded: int) -> tuple[str, Box | None]:
    """How dQ is added up, and the box of its descriptor; the interpreter has no TMA reduction."""
    if kernel == "dkdv":
        return "none", None
    if problem.settings.dq_sum == "tma" and tile.tma and not problem.interpreted:
        shape = (problem.sequences * n_padded, problem.head_dim)
        return "tma", (shape, (problem.head_dim, 1), [tile.streamed, problem.cols])
    return "atomics", None


def gradients_of_queries(
    problem: Problem, layouts: Layouts, n_padded: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A call (Q, K, V, dO, and the terms of row_terms) that returns dQ, in a pass of its own."""
    q, k, v, d_out = layouts
    tile, cols = problem.tile("dq"), problem.cols
    per_split = problem.split("dq", SUMMED_ROWS)
    n_splits = triton.cdiv(problem.n_keys, per_split)
    whole = n_splits == 1
    launch = Launch(
        dq_kernel,
        (triton.cdiv(problem.n_queries, tile.own) * problem.sequences, n_splits),
        (
            q.box(tile.own, cols, tile.tma), k.box(tile.streamed, cols, tile.tma), v.box(tile.streamed, cols, tile.tma),
            d_out.box(tile.own, cols, tile.tma), None, None,
        ),
        (
            *q.strides, *k.strides, *v.strides, *d_out.strides, problem.heads, problem.sequences, problem.together,
            problem.n_queries, n_padded, problem.n_keys, problem.head_dim, per_split, problem.scale, problem.factor,
            1.0,
        ),
        {
            "BLOCK_M": tile.own, "BLOCK_N": tile.streamed, "BLOCK_D": cols, "CAUSAL": problem.causal,
            "SPLIT": not whole, "WHOLE_M": problem.n_queries % tile.own == 0,
            "WHOLE_N": problem.n_keys % tile.streamed == 0, "WHOLE_D": problem.head_dim == cols, "TMA": tile.tma,
            "HELD": tile.held, "PRECISION": problem.precision, "WIDEN": problem.widen,
        },
        tile,
    )  # fmt: skip
    seen: Seen = "up_to" if problem.causal else "all"
    summed = _summed(problem, problem.n_queries, problem.n_queries, seen, problem.n_keys, per_split, n_splits)
    shape = (*problem.leading, problem.n_queries, problem.head_dim)

    def at_once(*tensors: Tensor) -> Tensor:
        d_q = problem.empty(*shape, dtype=problem.dtype)
        launch(*tensors, d_q)
        return d_q

    def in_splits(*tensors: Tensor) -> Tensor:
        parts = problem.empty(n_splits, *shape)
        launch(*tensors, parts)
        return summed(parts)[0]

    return at_once if whole else in_splits


def _summed(
    problem: Problem,
    n_rows: int,
    n_part_rows: int,
    seen: Seen,
    n_streamed: int,
    per_split: int,
    n_splits: int,
    scale: float = 1.0,
) -> Callable[..., tuple[Tensor, ...]]:
    """A call on one or two tensors of parts (splits, …, n_part_rows, d) that returns scale · their sums over splits.

    Sums are in the inputs' dtype, (…, n_rows, d).
    """
    shape = (*problem.leading, n_rows, problem.head_dim)
    programs = triton.cdiv(n_rows, SUMMED_ROWS) * problem.sequences
    scalars = (problem.sequences, n_rows, n_part_rows, problem.head_dim, n_streamed, per_split, n_splits, scale)
    constants = {"ROWS": SUMMED_ROWS, "COLS": problem.cols, "SEEN": seen}
    launches = {count: Launch(sum_kernel, (programs, count), (None,) * 4, scalars, constants) for count in (1, 2)}

    def call(*parts: Tensor) -> tuple[Tensor, ...]:
        totals = tuple(problem.empty(*shape, dtype=problem.dtype) for _ in parts)
        launches[len(parts)](parts[0], parts[-1], totals[0], totals[-1])
        return totals

    return call
