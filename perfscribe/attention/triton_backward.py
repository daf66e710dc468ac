"""The backward pass in Triton: choice of variant, tiles and splits, and the launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import triton
from torch import Tensor

from perfscribe.attention import gluon_kernels, gluon_launches, triton_configs
from perfscribe.attention.triton_backward_kernels import dkdv_kernel, dq_kernel, prepare_kernel, sum_kernel
from perfscribe.attention.triton_forward import Problem
from perfscribe.attention.triton_launches import Box, Launch, Layout

Seen: TypeAlias = Literal["all", "up_to", "from"]  # splits that contribute to a row: see sum_kernel
Layouts: TypeAlias = tuple[Layout, Layout, Layout, Layout]  # layouts of Q, K, V and dO
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor]

PREPARED_ROWS = 16
SUMMED_ROWS = 16


def backward(
    problem: Problem, layouts: Layouts, d_out_strides: tuple[int, int, int, int]
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]:
    """Return a call (Q, K, V, output, log-sum-exp, dO) that returns dQ, dK and dV, contiguous.

    Gradients have the inputs' shapes and dtype. Output and log-sum-exp are the forward pass's. dO is read through
    d_out_strides, and copied if its layout requires it.
    """
    length = max(problem.n_queries, problem.n_keys)
    chosen = problem.settings.backward
    variant = triton_configs.backward_for(problem.head_dim, length, problem.dtype, chosen, problem.fills_hopper)
    one_pass = variant != "two_pass"
    units = {
        "gluon": [gluon_kernels.ROWS.value],
        "one_pass": [problem.tile("one_pass").streamed],
        "two_pass": [problem.tile("dkdv").streamed, problem.tile("dq").kept],
    }
    n_padded = padded(problem, max(units[variant]))
    prepare = row_terms(problem, n_padded, d_out_strides, layouts[3].copied, one_pass)
    of_keys: Callable[..., tuple[Tensor, ...]]
    if variant == "gluon":
        of_keys = gluon_launches.backward(problem, layouts, n_padded)
    else:
        of_keys = gradients(problem, "one_pass" if one_pass else "dkdv", layouts, n_padded)
    if one_pass:
        scaled = _summed(problem, problem.n_queries, n_padded, "all", 1, 1, 1, problem.scale)
    else:
        of_queries = gradients(problem, "dq", layouts, n_padded)

    def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, d_out: Tensor) -> Gradients:
        terms, d_out, dq_sum = prepare(out, logsumexp, d_out)
        d_k, d_v = of_keys(q, k, v, d_out, terms, dq_sum)
        (d_q,) = scaled(dq_sum) if one_pass else of_queries(q, k, v, d_out, terms)
        return d_q, d_k, d_v

    return call


def padded(problem: Problem, unit: int) -> int:
    """Return the number of queries, rounded up to whole tiles of `unit` rows."""
    unit = max(unit, PREPARED_ROWS)
    return int(triton.cdiv(problem.n_queries, unit)) * unit


def row_terms(
    problem: Problem, n_padded: int, d_out_strides: tuple[int, int, int, int], copied: bool, one_pass: bool
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Return a call (output, log-sum-exp, dO) that returns (terms, dO, dq_sum) for the kernels of gradients().

    terms (2, sequences, n_padded): log-sum-exp in base 2 and rowsum(dO ∘ O). dO: as given, or a contiguous copy if
    `copied`. dq_sum (sequences, n_padded, d): zeros to which one pass adds dQ / scale; a placeholder for two passes.
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


def gradients(
    problem: Problem, kernel: Literal["one_pass", "dkdv", "dq"], layouts: Layouts, n_padded: int
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a call (Q, K, V, dO, terms, dq_sum) that returns (dK, dV); of "dq", without dq_sum, it returns (dQ,).

    "one_pass" also adds dQ / scale to dq_sum.
    """
    of_keys = kernel != "dq"
    tile, cols = problem.tile(kernel), problem.cols
    block_m, block_n = (tile.streamed, tile.kept) if of_keys else (tile.kept, tile.streamed)
    n_rows, n_streamed = problem.n_queries, problem.n_keys
    if of_keys:
        n_rows, n_streamed = n_streamed, n_rows
    per_split = problem.split(kernel, SUMMED_ROWS)
    n_splits = triton.cdiv(n_streamed, per_split)
    inputs = zip(layouts, (block_m, block_n, block_n, block_m), strict=True)
    boxes = [layout.box(rows, cols, tile.tma) for layout, rows in inputs]
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": cols, "CAUSAL": problem.causal, "SPLIT": n_splits > 1,
        "WHOLE_M": problem.n_queries % block_m == 0, "WHOLE_N": problem.n_keys % block_n == 0,
        "WHOLE_D": problem.head_dim == cols, "TMA": tile.tma, "HELD": tile.held, "PRECISION": problem.precision,
        "WIDEN": problem.interpreted,
    }  # fmt: skip
    if of_keys:
        terms: Box | None = ((2 * problem.sequences, n_padded), (n_padded, 1), [1, block_m]) if tile.tma else None
        constants["DQ"], dq_box = _dq_target(problem, kernel, tile, n_padded)
        boxes += [terms, dq_box, None, None]
    else:
        boxes += [None, None]
    launch = Launch(
        dkdv_kernel if of_keys else dq_kernel,
        (triton.cdiv(n_rows, tile.kept) * problem.sequences, n_splits),
        boxes,
        (
            *(stride for layout in layouts for stride in layout.strides), problem.heads, problem.sequences,
            problem.together, problem.n_queries, n_padded, problem.n_keys, problem.head_dim, per_split,
            problem.scale, problem.factor, 1.0,
        ),
        constants,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    seen: Seen = "all" if not problem.causal else "from" if of_keys else "up_to"
    summed = _summed(problem, n_rows, n_rows, seen, n_streamed, per_split, n_splits)
    shape = (*problem.leading, n_rows, problem.head_dim)
    results = range(2 if of_keys else 1)

    def at_once(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = tuple([problem.empty(*shape, dtype=problem.dtype) for _ in results])
        launch(*tensors, *outputs)
        return outputs

    def in_splits(*tensors: Tensor) -> tuple[Tensor, ...]:
        parts = [problem.empty(n_splits, *shape) for _ in results]
        launch(*tensors, *parts)
        return summed(*parts)

    return at_once if n_splits == 1 else in_splits


def _dq_target(problem: Problem, kernel: str, tile: triton_configs.Tile, n_padded: int) -> tuple[str, Box | None]:
    """Return how dQ is accumulated, and the box of its descriptor; the interpreter has no TMA reduction."""
    if kernel == "dkdv":
        return "none", None
    if problem.settings.dq_sum == "tma" and tile.tma and not problem.interpreted:
        shape = (problem.sequences * n_padded, problem.head_dim)
        return "tma", (shape, (problem.head_dim, 1), [tile.streamed, problem.cols])
    return "atomics", None


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
    """Return a call on one or two tensors (splits, …, n_part_rows, d), FP32, that returns scale · sums over splits.

    Sums are (…, n_rows, d) in problem.dtype. seen, n_streamed and per_split choose a row's splits, see sum_kernel.
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
