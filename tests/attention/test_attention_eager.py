"""Eager attention against the definition in float64 and against torch, and the matrices it allocates and keeps."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from allocations import CudaSoftmax, LiveBytes, Saved, autocast
from torch._subclasses.fake_tensor import FakeTensorMode

from perfscribe.attention.eager import scaled_dot_product_attention

BATCH, N, D = 3, 48, 16


def inputs(*leading, n=N, m=N, d=D, e=D, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = ((*leading, n, d), (*leading, m, d), (*leading, m, e))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def causal(n=N, m=N):
    return torch.ones(n, m, dtype=torch.bool).tril()


def definition(q, k, v, mask=None):
    """Row by row in float64, without a matrix product."""
    q, k, v = q.double(), k.double(), v.double()
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / q.shape[-1] ** 0.5
    weights = scores.exp() if mask is None else scores.exp() * mask
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("leading", "shape"), [((2, 4), dict(n=33, m=47)), ((BATCH,), dict(d=128, e=24)), ((), dict(n=1, m=1))]
)
def test_forward_and_backward_against_float64_and_torch(leading, shape, masked):
    q, k, v = inputs(*leading, **shape)
    mask = causal(q.shape[-2], k.shape[-2]) if masked else None
    out = scaled_dot_product_attention(q, k, v, mask)
    expected = definition(q, k, v, mask)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask), rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- the table of the docstring: N×N matrices allocated, alive at once, kept ------------------------------------------

TABLE = {  # (dtype, device whose autocast rules apply, masked): allocated, bytes of an element alive at once, kept
    ("fp32", "cpu", False): (2, 4 + 4, [torch.float32]),
    ("fp32", "cpu", True): (3, 4 + 4, [torch.float32]),
    ("bf16", "cpu", True): (3, 2 + 2, [torch.bfloat16]),
    ("bf16", "cuda", True): (5, 2 + 4 + 4, [torch.bfloat16, torch.float32]),
    ("fp16", "cuda", False): (3, 2 + 4, [torch.float16, torch.float32]),
}


@pytest.mark.parametrize(("dtype", "device", "masked"), TABLE)
def test_matrices_allocated_and_kept(dtype, device, masked):
    allocated, alive_bytes, kept = TABLE[dtype, device, masked]
    rules = CudaSoftmax() if device == "cuda" else contextlib.nullcontext()
    fake = FakeTensorMode() if dtype == "fp16" else contextlib.nullcontext()
    with fake:
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
        q, k, v = inputs(BATCH, n=256, m=256, dtype=low)  # 256: the matrix outweighs all else
        mask = causal(256, 256) if masked else None
        given = [q, k, v] if mask is None else [q, k, v, mask]
        with LiveBytes(*given) as live, Saved(*given) as saved, autocast(dtype), rules:
            before = live.now
            scaled_dot_product_attention(q, k, v, mask)
    matrix = BATCH * 256 * 256
    assert live.log.count(matrix) == allocated
    assert (live.peak - before) / matrix == pytest.approx(alive_bytes, abs=2 * 4 * D / 256)
    matrices = [tensor.dtype for tensor in saved.tensors.values() if tensor.numel() == matrix]
    assert sorted(matrices, key=str) == kept
