"""Random weights that depend on a seed alone, drawn without touching the generators that training goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Within it tensors are made on the device ("cpu", "cuda", "cuda:1", "meta"), and random ones follow the seed."""
    target = torch.device(device)
    with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
        torch.manual_seed(seed)
        with target:
            yield
