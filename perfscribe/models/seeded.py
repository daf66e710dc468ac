"""Random weights that depend only on a seed, drawn without advancing the generators that training uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Make tensors on the device ("cpu", "cuda", "cuda:1", "meta") and seed random numbers, within the block."""
    target = torch.device(device)
    with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
        torch.manual_seed(seed)
        with target:
            yield
