"""The toy model of CS336, assignment 2: the handout asks for its dtypes under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ToyModel(nn.Module):
    """Linear in → 10 and ReLU, LayerNorm(10), linear 10 → out; the linear layers have no bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, 10, bias=False)
        self.ln = nn.LayerNorm(10)
        self.fc2 = nn.Linear(10, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in_features) to logits (..., out_features)."""
        logits: Tensor = self.fc2(self.ln(torch.relu(self.fc1(x))))
        return logits
