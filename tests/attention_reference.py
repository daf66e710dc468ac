"""Attention in float64 on the CPU, by its definition, and the comparison of an implementation with it."""

import torch

from perfscribe.attention.eager import scaled_dot_product_attention


def definition(q, k, v, causal, upstream):
    """Output, log-sum-exp and gradients by eager attention."""
    q, k, v = (x.detach().cpu().double().requires_grad_() for x in (q, k, v))
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril() if causal else None
    out = scaled_dot_product_attention(q, k, v, mask)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(~mask, float("-inf"))
    gradients = torch.autograd.grad(out, (q, k, v), upstream.cpu().double())
    return out, scores.logsumexp(-1), *gradients


def check(attention, q, k, v, causal, tolerance, upstream=None):
    """Compare all five results of a flash attention by relative norms; returns them."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, causal)
    (kept,) = (x for x in out.grad_fn.saved_tensors if x.shape == q.shape[:-1])
    upstream = torch.randn_like(out) if upstream is None else upstream
    results = (out, kept, *torch.autograd.grad(out, (q, k, v), upstream))
    names = ("output", "log-sum-exp", "dQ", "dK", "dV")
    for name, got, right in zip(names, results, definition(q, k, v, causal, upstream), strict=True):
        assert got.shape == right.shape and torch.isfinite(got).all(), name
        assert got is kept or got.dtype == q.dtype, name
        limit = min(tolerance, 3e-4) if got is kept else tolerance
        error = (got.detach().cpu().double() - right).norm() / max(right.norm(), 0.1 * right.numel() ** 0.5)
        assert error <= limit, f"{name}: relative error {error:.2e}, allowed {limit:.0e}"
    return results
