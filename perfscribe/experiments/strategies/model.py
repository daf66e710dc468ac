"""The models of strategies by name, and their parameters as the counters take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from perfscribe.analytic.workshop_shapes import BLOOM, SimpleGptShape
from perfscribe.models import bloom, simple_gpt

# Ours, for machines without a GPU; BLOOM's own code takes seconds to import.
SMALL = {"gpt-tiny": SimpleGptShape(vocab_size=512, hidden_size=64, num_layers=3, num_heads=2, ffn=128)}


def build(name: str, seed: int, device: torch.device) -> tuple[nn.Module, type[nn.Module]]:
    """The model in fp32 with random weights of this seed, without dropout, and the class of its blocks."""
    if name in SMALL:
        model: nn.Module = simple_gpt.build(SMALL[name], seed, str(device))
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            elif isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
        return model, nn.TransformerEncoderLayer
    from transformers.models.bloom.modeling_bloom import BloomBlock

    return bloom.with_random_weights(bloom.shape_of(name), seed, str(device)), BloomBlock


def vocabulary(name: str) -> int:
    """Its number of tokens."""
    return SMALL[name].vocab_size if name in SMALL else BLOOM[name].vocab_size


def loss_of(module: nn.Module, ids: Tensor) -> Tensor:
    """The model's own loss of predicting each next token of ids (B, S), a scalar in fp32."""
    loss: Tensor = module(input_ids=ids, labels=ids)["loss"]
    return loss


def layout(model: nn.Module, kind: type[nn.Module]) -> dict[str, Any]:
    """First dimension and elements of each parameter outside of the blocks and of one block; number of the blocks.

    ValueError: the blocks differ.
    """
    blocks = [part for part in model.modules() if isinstance(part, kind)]
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    shapes = [[[p.shape[0], p.numel()] for p in block.parameters()] for block in blocks]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("the blocks of the model differ")
    outside = [[p.shape[0], p.numel()] for p in model.parameters() if id(p) not in inside]
    return {"outside": outside, "block": shapes[0], "blocks": len(blocks)}
