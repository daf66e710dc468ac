"""The language model of CS336, assignment 2: pre-norm transformer with RMSNorm, RoPE and SwiGLU, no biases.

Shape suffixes in comments: B batch, S sequence, D d_model, H heads, C head_dim, F d_ff, V vocabulary.

perfscribe.analytic.replay follows the allocations of these modules one by one: a line moved here must move there too;
tests/analytic/test_counters_memory.py compares them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perfscribe.analytic.shapes import Shape
from perfscribe.attention.eager import scaled_dot_product_attention

Device = torch.device | str | None
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v (B, H, S, C), mask (S, S)

ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · weight over the last dimension, computed in fp32 or wider and returned in x's dtype."""

    def __init__(self, d_model: int, device: Device = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., D) to (..., D)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)  # (..., 1)
        return (wide * inverse_rms * self.weight).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Rotates each pair (x[2i], x[2i+1]) of a head by position · θ^(-2i/C) (Su et al. 2021, section 3.2)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, context_length: int, device: Device = None) -> None:
        super().__init__()
        pair = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)  # (C/2,)
        position = torch.arange(context_length, device=device, dtype=torch.float64)
        angle = torch.outer(position, ROPE_THETA ** (-pair / head_dim))  # (context, C/2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate x (B, H, S, C), at positions 0 to S-1; same shape and dtype."""
        cos = self.cos[: x.shape[-2]].to(x.dtype)  # (S, C/2)
        sin = self.sin[: x.shape[-2]].to(x.dtype)
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # (B, H, S, C/2)
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Multi-head self-attention with separate q, k, v and output projections.

    compute: function of q, k, v and the mask; replaceable, so that variants can be traced or compared.
    """

    def __init__(self, shape: Shape, device: Device = None) -> None:
        super().__init__()
        self.heads = shape.heads
        self.compute: AttentionFunction = scaled_dot_product_attention
        width = shape.d_model
        self.q = nn.Linear(width, width, bias=False, device=device)
        self.k = nn.Linear(width, width, bias=False, device=device)
        self.v = nn.Linear(width, width, bias=False, device=device)
        self.o = nn.Linear(width, width, bias=False, device=device)

    def forward(self, x: Tensor, rotary: RotaryEmbedding, mask: Tensor) -> Tensor:
        """Map x (B, S, D) to (B, S, D); mask (S, S), bool, is True where a query may see a key."""
        q = rotary(self.split(self.q(x)))  # (B, H, S, C)
        k = rotary(self.split(self.k(x)))
        v = self.split(self.v(x))
        out = self.compute(q, k, v, mask)  # (B, H, S, C)
        projected: Tensor = self.o(out.transpose(1, 2).flatten(-2))
        return projected

    def split(self, x: Tensor) -> Tensor:
        """View x (B, S, D) as (B, H, S, C)."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads


class SwiGLU(nn.Module):
    """w2(silu(w1 x) · w3 x) (Shazeer 2020)."""

    def __init__(self, shape: Shape, device: Device = None) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.d_model, shape.d_ff, bias=False, device=device)
        self.w2 = nn.Linear(shape.d_ff, shape.d_model, bias=False, device=device)
        self.w3 = nn.Linear(shape.d_model, shape.d_ff, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, S, D) through (B, S, F) to (B, S, D)."""
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """One pre-norm layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: Shape, device: Device = None) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.d_model, device)
        self.attention = Attention(shape, device)
        self.feed_forward_norm = RMSNorm(shape.d_model, device)
        self.feed_forward = SwiGLU(shape, device)

    def forward(self, x: Tensor, rotary: RotaryEmbedding, mask: Tensor) -> Tensor:
        """Map x (B, S, D) and mask (S, S) to (B, S, D)."""
        x = x + self.attention(self.attention_norm(x), rotary, mask)
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class Model(nn.Module):
    """Maps token ids to logits of the next token; head and embedding are not tied.

    Parameters: 2·V·D + L·(4·D² + 3·D·F + 2·D) + D for L layers (perfscribe.analytic.parameters).
    Rotary tables and the causal mask are made by __init__, outside any timed call.
    """

    causal_mask: Tensor

    def __init__(self, shape: Shape, context_length: int, device: Device = None) -> None:
        super().__init__()
        self.shape = shape
        self.context_length = context_length
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model, device=device)
        self.blocks = nn.ModuleList(Block(shape, device) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.d_model, device)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False, device=device)
        self.rotary = RotaryEmbedding(shape.head_dim, context_length, device)
        mask = torch.ones(context_length, context_length, dtype=torch.bool, device=device).tril()
        self.register_buffer("causal_mask", mask, persistent=False)

    def use_attention(self, compute: AttentionFunction) -> None:
        """Let every block compute attention by this function."""
        for part in self.modules():
            if isinstance(part, Attention):
                part.compute = compute

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, S), int64, to logits (B, S, V). Raises ValueError if S exceeds the context length."""
        length = tokens.shape[-1]
        if length > self.context_length:
            raise ValueError(f"{length} tokens do not fit into a context length of {self.context_length}")
        mask = self.causal_mask[:length, :length]  # (S, S)
        x = self.embedding(tokens)  # (B, S, D)
        for block in self.blocks:
            x = block(x, self.rotary, mask)
        logits: Tensor = self.head(self.norm(x))  # (B, S, V)
        return logits


def next_token_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the model's logits for tokens (B, S) against targets (B, S); a scalar in fp32.

    The logits get no name, so that they are freed as soon as autograd no longer needs them.
    """
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
