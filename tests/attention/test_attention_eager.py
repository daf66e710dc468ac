"""Eager attention against the definition in float64 and against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from perfscribe.attention.eager import scaled_dot_product_attention


def definition(q, k, v, mask=None):
    """Row by row in float64, without a matrix product."""
    q, k, v = q.double(), k.double(), v.double()
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / q.shape[-1] ** 0.5
    weights = scores.exp() if mask is None else scores.exp() * mask
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("leading", "n", "m", "d", "e"), [((2, 4), 33, 47, 16, 16), ((3,), 48, 48, 128, 24), ((), 1, 1, 16, 16)]
)
def test_forward_and_backward_against_float64_and_torch(leading, n, m, d, e, masked):
    torch.manual_seed(0)
    q, k, v = (torch.randn(*leading, *shape, requires_grad=True) for shape in ((n, d), (m, d), (m, e)))
    mask = torch.ones(n, m, dtype=torch.bool).tril() if masked else None
    out = scaled_dot_product_attention(q, k, v, mask)
    expected = definition(q, k, v, mask)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask), rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
