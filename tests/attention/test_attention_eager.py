"""Eager attention against the definition in float64 and against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

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
