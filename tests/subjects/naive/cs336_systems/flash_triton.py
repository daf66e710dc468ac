"""FlashAttention-2 as a first solution has it: forward in Triton, backward in PyTorch with the whole matrix."""

import torch
import triton
import triton.language as tl

from cs336_systems.flash import FlashAttention

TILE = 64


@triton.jit
def forward_kernel(q, k, v, out, sums, queries, keys, scale, d: tl.constexpr, tile: tl.constexpr, causal: tl.constexpr):
    batch = tl.program_id(1)
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.arange(0, d)[None, :]
    q_tile = tl.load(q + (batch * queries + rows[:, None]) * d + columns)
    acc = tl.zeros((tile, d), tl.float32)
    most = tl.full((tile,), float("-inf"), tl.float32)
    total = tl.zeros((tile,), tl.float32)
    for start in range(0, keys, tile):
        at = start + tl.arange(0, tile)
        k_tile = tl.load(k + (batch * keys + at[:, None]) * d + columns)
        v_tile = tl.load(v + (batch * keys + at[:, None]) * d + columns)
        scores = (tl.dot(q_tile, tl.trans(k_tile)) * scale).to(tl.float32)
        if causal:
            scores = tl.where(rows[:, None] >= at[None, :], scores, -1e6)
        larger = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp(scores - larger[:, None])
        shrink = tl.exp(most - larger)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v_tile.dtype), v_tile)
        most = larger
    tl.store(out + (batch * queries + rows[:, None]) * d + columns, (acc / total[:, None]).to(q_tile.dtype))
    tl.store(sums + batch * queries + rows, most + tl.log(total))


class FlashAttentionTriton(FlashAttention):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, queries, d = q.shape
        out = torch.empty_like(q)
        sums = torch.empty((batch, queries), device=q.device, dtype=torch.float32)
        grid = (queries // TILE, batch)
        forward_kernel[grid](q, k, v, out, sums, queries, k.shape[1], d**-0.5, d, TILE, is_causal)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.is_causal = is_causal
        return out
