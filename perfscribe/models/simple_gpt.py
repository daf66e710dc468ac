"""The FSDP workshop's SimpleGPTModel: nn.TransformerEncoder under a causal mask.

As in the source: post-norm layers with ReLU and dropout 0.1, torch's default initialisation, no positional encoding,
and the attention mask (for padding) is ignored. With padding on the right this changes nothing, as no position sees
later ones; with the source's padding on the left every position sees the padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.models.seeded import seeded

IGNORED = -100
DROPOUT = 0.1


def next_token_loss(logits: Tensor, labels: Tensor, items: Tensor | int | None, shift: bool) -> Tensor:
    """Cross-entropy in fp32 of logits (B, S, V) and labels (B, S), ignoring -100.

    shift: position i predicts label i + 1; otherwise label i, its own input, as in the workshop's single-node script.
    items: divide the sum by this number of labels (those of a whole accumulated batch), not by this batch's.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    whole = functional.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(),
        labels.reshape(-1),
        ignore_index=IGNORED,
        reduction="mean" if items is None else "sum",
    )
    return whole if items is None else whole / items


class SimpleGPTModel(nn.Module):
    """Token embedding, nn.TransformerEncoder, linear head with a bias.

    Attributes that Trainer reads: accepts_loss_kwargs (so that it passes num_items_in_batch and does not divide by the
    accumulation steps) and loss_type (whether position 0 counts as a label).
    """

    accepts_loss_kwargs = True
    supports_gradient_checkpointing = True

    def __init__(self, shape: SimpleGptShape, shift_labels: bool = True) -> None:
        super().__init__()
        self.shape, self.shift_labels = shape, shift_labels
        self.loss_type = "ForCausalLM" if shift_labels else None
        self.gradient_checkpointing = False
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        layer = nn.TransformerEncoderLayer(
            shape.hidden_size, shape.num_heads, shape.ffn, dropout=DROPOUT, activation="relu", batch_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, shape.num_layers, enable_nested_tensor=False)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size)
        if shape.tied:
            self.lm_head.weight = self.token_embedding.weight

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Checkpoint every layer (store only its input for backward), non-reentrant, whatever the arguments."""
        self.gradient_checkpointing = True

    # Trainer calls this name from version 6 on.
    activation_checkpointing_enable = gradient_checkpointing_enable

    def gradient_checkpointing_disable(self) -> None:
        """Store all activations that backward needs."""
        self.gradient_checkpointing = False

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Output (B, S, d) of the last layer for ids (B, S)."""
        x = self.token_embedding(input_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.size(1), device=x.device, dtype=x.dtype)
        if not (self.gradient_checkpointing and self.training):
            x = self.transformer(x, mask=mask, is_causal=True)
        else:
            for layer in self.transformer.layers:
                x = checkpoint(layer, x, mask, None, True, use_reentrant=False)
        encoded: Tensor = x
        return encoded

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        """Logits (B, S, V) and, with labels (B, S), the loss."""
        logits = self.lm_head(self.hidden(input_ids))
        if labels is None:
            return {"logits": logits}
        return {"loss": next_token_loss(logits, labels, num_items_in_batch, self.shift_labels), "logits": logits}

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int, **_: Any) -> Tensor:
        """Append max_new_tokens greedily chosen ids to prompts (B, S), which are padded on the left.

        Padding is moved to the right, where no token sees it, so that no row's answer depends on the other rows.
        """
        was_training = self.training
        self.eval()
        lengths = attention_mask.sum(dim=1).long()
        rows, start = torch.arange(len(lengths), device=input_ids.device), input_ids.size(1) - lengths
        width = int(lengths.max()) + max_new_tokens
        ids = input_ids.new_zeros(len(lengths), width)
        for row, (begin, length) in enumerate(zip(start.tolist(), lengths.tolist(), strict=True)):
            ids[row, :length] = input_ids[row, begin:]
        for _step in range(max_new_tokens):
            last = self.hidden(ids[:, : int(lengths.max())])[rows, lengths - 1]
            ids[rows, lengths] = self.lm_head(last).argmax(-1)
            lengths = lengths + 1
        self.train(was_training)
        new = torch.stack([ids[row, int(end) - max_new_tokens : int(end)] for row, end in enumerate(lengths)])
        return torch.cat([input_ids, new], dim=1)


def build(shape: SimpleGptShape, seed: int, device: str = "cpu", shift_labels: bool = True) -> SimpleGPTModel:
    """Make the model in fp32 with random weights, the same per seed and kind of device."""
    with seeded(seed, device):
        return SimpleGPTModel(shape, shift_labels)
