"""The Triton kernels against float64, in the process that test_flash_attention.py starts for this file.

Not collected by name: whether Triton interprets kernels is settled when it is first imported, so these tests have a
process of their own, with TRITON_INTERPRET=1 where there is no GPU. FLASH_PART=i/n takes every n-th case from the i-th.
"""

import itertools
import os
import warnings

import attention_reference
import pytest
import torch
import triton.language as tl
from attention_reference import definition

from perfscribe.attention import triton_configs, triton_forward, triton_kernels
from perfscribe.attention.triton_configs import KERNELS, Tile, using
from perfscribe.attention.triton_kernels import INTERPRETED, FlashAttentionTriton

DEVICE = "cpu" if INTERPRETED else "cuda"
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
HEAD_DIMS = (16, 24, 40, 64, 80, 128)
SHAPES = ((1, 1), (1, 9), (9, 1), (17, 17), (64, 64), (70, 70), (130, 130), (33, 81), (81, 33))
# relative to the norm of the right answer; the interpreter cuts bf16 off where hardware rounds
TOLERANCE = {FP32: 2e-5, BF16: 1.2e-2 if INTERPRETED else 8e-3, FP16: 1e-3}
PRODUCTS_TOLERANCE = {"ieee": 6e-6, "tf32x3": 2e-5, "tf32": 2e-3}
SEQUENCE = (2,)


def patch_language_once():
    """Let the interpreter replace the language's functions once a kernel, not with each function that it calls.

    It looks through all of triton.language to find that nothing is left to replace, for three quarters of its time.
    """
    from triton.runtime import interpreter

    patch, running = interpreter._patch_lang, []

    def patch_where_needed(function):
        languages = {id(value) for value in function.__globals__.values() if value in (tl, tl.core)}
        if running and languages <= running[0]:
            return None  # what is called from a kernel never puts the language back
        scope = patch(function)
        if running:
            running[0] |= languages
        else:
            running.append(languages)
            restore = scope.restore
            scope.restore = lambda: (running.clear(), restore())
        return scope

    interpreter._patch_lang = patch_where_needed


if INTERPRETED:
    patch_language_once()


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fill the kernels' outputs with NaN first, so that an element left out cannot pass for a zero."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor):
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))


def part(*factors, few=2):
    """Every n-th combination, the last factor varying fastest; of fewer than n one, so that none is skipped.

    The slow interpreter takes `few` of them, at equal distances, which are to differ in kind.
    """
    index, count = map(int, os.environ.get("FLASH_PART", "0/1").split("/"))
    cases = list(itertools.product(*factors)) if len(factors) > 1 else list(factors[0])
    if INTERPRETED:
        cases = [cases[round(n * (len(cases) - 1) / (few - 1))] for n in range(few)]
    return cases[index::count] or [cases[index % len(cases)]]


def tiles(own, streamed, **kind):
    """The same tile for all kernels; on a GPU the least that tensor cores take with the warps given."""
    return {kernel: Tile(own, streamed, **kind) for kernel in KERNELS}


def operands(n_queries, n_keys, d, dtype, leading=SEQUENCE, spread=1.0):
    torch.manual_seed(n_queries * 1000 + n_keys + d)
    made = [torch.randn(*leading, n, d, dtype=torch.float64) * spread for n in (n_queries, n_keys, n_keys)]
    return [x.to(dtype).to(DEVICE) for x in made]


def check(q, k, v, causal, tolerance=None, upstream=None):
    """Compare the kernels' results; returns them."""
    tolerance = TOLERANCE[q.dtype] if tolerance is None else tolerance
    results = attention_reference.check(FlashAttentionTriton.apply, q, k, v, causal, tolerance, upstream)
    assert results[1].dtype == torch.float32
    return results


@pytest.mark.parametrize(
    ("shape", "causal", "dtype", "d"),
    part(
        [
            (shape, causal, dtype, HEAD_DIMS[(i + j) % len(HEAD_DIMS)])
            for i, (shape, causal) in enumerate(itertools.product(SHAPES, (False, True)))
            for j, dtype in enumerate((FP32, BF16, FP16))
        ],
        few=6,
    ),
)
def test_lengths_with_the_default_tiles(shape, causal, dtype, d):
    check(*operands(*shape, d, dtype, leading=(1,) if INTERPRETED else SEQUENCE), causal)


@pytest.mark.parametrize(("dtype", "d", "causal"), part((FP32, BF16, FP16), HEAD_DIMS, (False, True), few=3))
def test_head_dimensions_over_several_tiles(d, causal, dtype):
    with using(tiles=tiles(32, 16, tma=False, stages=1)):
        check(*operands(40, 40, d, dtype, leading=(1,)), causal)


@pytest.mark.parametrize(
    ("backward", "splits", "tma", "causal", "shape", "tile"),
    part(
        ("one_pass", "two_pass"), (1, 3), (True, False), (True, False),
        ((81, 113), (113, 81), (96, 96)), ((32, 16), (16, 32)), few=5,
    ),
)  # fmt: skip
def test_every_variant(shape, tile, tma, backward, splits, causal):
    with using(tiles=tiles(*tile, tma=tma, stages=1), backward=backward, splits=dict.fromkeys(KERNELS, splits)):
        check(*operands(*shape, 24, FP32 if INTERPRETED else BF16, leading=(1,)), causal)


if not INTERPRETED and triton_configs.has_wgmma(torch.device(DEVICE)):  # a skipped test would fail the run

    @pytest.mark.parametrize(
        ("shape", "causal", "d", "dtype"),
        part(
            ((1, 1), (130, 130), (257, 70), (70, 257), (200, 129), (300, 500)), (False, True),
            (40, 64, 80, 128), (BF16, FP16),
        ),
    )  # fmt: skip
    def test_many_rows(monkeypatch, shape, causal, d, dtype):
        monkeypatch.setattr(triton_configs, "has_many_rows", lambda length, sequences: True)
        monkeypatch.setattr(triton_kernels, "_plans", {})
        inputs = operands(*shape, d, dtype, leading=(2, 3))
        for _ in range(2):  # the second launches what the first has compiled
            check(*inputs, causal)
        check(*(x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs), causal)
        check(*inputs, causal, upstream=torch.ones(1, dtype=dtype, device=DEVICE).expand(inputs[0].shape))


@pytest.mark.parametrize(("held", "backward"), part((1, 2), ("one_pass", "two_pass")))
def test_left_factors_held_in_registers(held, backward):
    with using(tiles=tiles(64, 64, held=held), backward=backward):
        check(*operands(130, 130, 40, BF16, leading=(1,)), True)


def test_other_tensors_of_the_same_kind():
    """The second call launches what the first has compiled; strides, and with them the kind, differ in the third."""
    for spread in (1.0, 2.0):
        check(*operands(70, 70, 64, BF16, spread=spread), True)
    check(*(x.transpose(0, 1).contiguous().transpose(0, 1) for x in operands(70, 70, 64, BF16)), True)


def test_saved_tensors_that_come_back_with_other_strides():
    q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in operands(40, 40, 16, FP32))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.contiguous()):
        out = FlashAttentionTriton.apply(q, k, v, True)
        upstream = torch.randn_like(out)
        gradients = torch.autograd.grad(out, (q, k, v), upstream)
    for got, right in zip(gradients, definition(q, k, v, True, upstream)[2:], strict=True):
        torch.testing.assert_close(got.cpu().double(), right, rtol=1e-4, atol=1e-5)


def test_compiled_without_breaks_or_warnings():
    q, k, v = (x.requires_grad_() for x in operands(20, 35, 16, FP32, leading=(2, 3)))
    compiled = torch.compile(FlashAttentionTriton.apply, fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        out = compiled(q, k, v, True)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))  # of stride 0
    right, _, *expected = definition(q, k, v, True, torch.ones_like(out))
    for got, one in zip((out, *gradients), (right, *expected), strict=True):
        torch.testing.assert_close(got.detach().cpu().double(), one.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("together", "backward"), part((2, 1, 3, 5), ("one_pass", "two_pass")))
def test_sequences_whose_programs_mix(backward, together, monkeypatch):
    """In groups of all sizes, the last one with fewer sequences."""
    monkeypatch.setattr(triton_forward, "GROUP_BYTES", together * 20 * 16 * 2 * 4)
    with using(backward=backward, tiles=tiles(16, 16, stages=1)):
        check(*operands(20, 20, 16, FP32, leading=(5,)), True)


@pytest.mark.parametrize("dq_sum", ["tma", "atomics"])
def test_ways_to_add_up_dq(dq_sum):
    with using(dq_sum=dq_sum, backward="one_pass"):
        check(*operands(130, 130, 40, BF16, leading=(1,)), True)


@pytest.mark.parametrize(("d", "products"), part((64, 80), ("ieee", "tf32x3", "tf32")))
def test_precisions_of_fp32_products(products, d):
    with using(float32_products=products):
        check(*operands(70, 70, d, FP32, leading=(1,)), True, tolerance=PRODUCTS_TOLERANCE[products])


LAYOUTS = ("heads last", "every second row", "transposed", "expanded", "narrowed", "unaligned")


@pytest.mark.parametrize(("tma", "layout"), part((True, False), LAYOUTS, few=4))
def test_tensors_that_are_not_contiguous(layout, tma):
    batch, heads, n, d = 2, 2, 24, 16
    if layout == "heads last":
        made = [x.transpose(1, 2) for x in operands(heads, heads, d, FP32, leading=(batch, n))]
    elif layout == "every second row":
        made = [x[..., ::2, :] for x in operands(2 * n, 2 * n, d, FP32, leading=(batch, heads))]
    elif layout == "transposed":
        made = [x.transpose(-2, -1) for x in operands(d, d, n, FP32, leading=(batch, heads))]
    elif layout == "expanded":
        made = [x.expand(batch, heads, n, d) for x in operands(n, n, d, FP32, leading=(batch, 1))]
    elif layout == "narrowed":
        made = [x[..., 8 : 8 + d] for x in operands(n, n, d + 16, FP32, leading=(batch, heads))]
    else:
        made = [x[..., 1 : 1 + d] for x in operands(n, n, d + 8, FP32, leading=(batch, heads))]
    assert not made[0].is_contiguous()
    upstream = torch.randn(batch, n, heads, d, device=DEVICE).transpose(1, 2)
    with using(tiles=tiles(32 if INTERPRETED else 16, 16, tma=tma, stages=1)):
        check(*made, True, upstream=upstream)


@pytest.mark.parametrize(("backward", "causal", "sign"), part(("one_pass", "two_pass"), (False, True), (1, -1)))
def test_scores_far_from_zero(sign, causal, backward):
    """Each near ±400: exp of what padded keys and rows would give overflows, and must not come into any result."""
    q, k, v = operands(41, 41, 16, FP32)
    q, k = q * 0.01 + 10, (k * 0.01 + 10) * sign
    with using(backward=backward, tiles=tiles(32, 32, stages=1)):
        check(q, k, v, causal, tolerance=1e-3)


@pytest.mark.parametrize("backward", ["one_pass", "two_pass"])
def test_keys_that_no_query_sees_get_zero_gradients(backward):
    with using(backward=backward, splits=dict.fromkeys(KERNELS, 2), tiles=tiles(16, 16, stages=1)):
        *_, d_k, d_v = check(*operands(20, 50, 16, FP32, leading=(1,)), True)
    assert not d_k[:, 20:].any() and not d_v[:, 20:].any()


def test_two_passes_give_the_same_bits_again():
    inputs = operands(70, 70, 64, BF16, leading=(1,))
    upstream = torch.randn_like(inputs[0])
    with using(backward="two_pass", splits=dict.fromkeys(KERNELS, 2)):
        first, again = (check(*inputs, True, upstream=upstream) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
