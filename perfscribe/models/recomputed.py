"""One level of recomputation over the language model: layers whose activations backward computes again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfscribe.models.transformer import Model, RotaryEmbedding


class Recomputed(nn.Module):
    """Blocks that keep only their input for backward, which runs them again.

    halves: attention and feed-forward of the only block each keep their input and run again apart.
    """

    def __init__(self, blocks: Iterable[nn.Module], halves: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.parts = [self._attention, self._feed_forward] if halves else [self._run]

    def forward(self, x: Tensor, rotary: RotaryEmbedding, mask: Tensor) -> Tensor:
        """Map x (B, S, D) and mask (S, S) to (B, S, D)."""
        for part in self.parts:  # nothing in them is random
            x = checkpoint(part, x, rotary, mask, use_reentrant=False, preserve_rng_state=False)
        return x

    def _run(self, x: Tensor, rotary: RotaryEmbedding, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, rotary, mask)
        return x

    def _attention(self, x: Tensor, rotary: RotaryEmbedding, mask: Tensor) -> Tensor:
        block: Any = self.blocks[0]
        out: Tensor = x + block.attention(block.attention_norm(x), rotary, mask)
        return out

    def _feed_forward(self, x: Tensor, _rotary: RotaryEmbedding, _mask: Tensor) -> Tensor:
        block: Any = self.blocks[0]
        out: Tensor = x + block.feed_forward(block.feed_forward_norm(x))
        return out


def recompute(model: Model, block_size: float) -> None:
    """Let backward recompute block_size layers at a time (the last may be fewer), or half a layer (0.5)."""
    blocks, size = [*model.blocks], max(1, int(block_size))
    groups = [blocks[at : at + size] for at in range(0, len(blocks), size)]
    model.blocks = nn.ModuleList(Recomputed(group, halves=block_size < 1) for group in groups)
