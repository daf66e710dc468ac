"""The encoder-decoder transformer of the Polaris homework (ALCF): torch.nn.Transformer, batch first."""

from __future__ import annotations

import torch
from torch import nn

from perfscribe.analytic.shapes import Seq2SeqShape


def make_seq2seq(
    shape: Seq2SeqShape | None = None, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Transformer:
    """nn.Transformer mapping source (batch, m, d_model) and target (batch, n, d_model) to (batch, n, d_model).

    Without a shape, the homework's model: 44,140,544 parameters. Dropout is nn.Transformer's default, 0.1.
    """
    shape = shape or Seq2SeqShape()
    return nn.Transformer(
        d_model=shape.d_model,
        nhead=shape.heads,
        num_encoder_layers=shape.encoder_layers,
        num_decoder_layers=shape.decoder_layers,
        dim_feedforward=shape.d_ff,
        batch_first=True,
        device=device,
        dtype=dtype,
    )
