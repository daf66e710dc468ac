"""A module kept equal on all ranks, by PyTorch's DistributedDataParallel or by one of ours."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perfscribe.distributed.ddp import DataParallel, FlatDDP, NaiveDDP, OverlappedDDP

TORCH = "torch_ddp"
OURS: dict[str, type[DataParallel]] = {"naive": NaiveDDP, "flat": FlatDDP, "overlap_individual": OverlappedDDP}


class Wrapped:
    """call(...) is the module's forward; finish() ends a backward, after which gradients are averages."""

    def __init__(self, implementation: str, module: nn.Module) -> None:
        self._ours = OURS[implementation](module) if implementation != TORCH else None
        self._torch = None if self._ours is not None else _torch_ddp(module)

    def call(self, *inputs: torch.Tensor) -> Any:
        """Forward."""
        wrapped = self._torch if self._ours is None else self._ours
        assert wrapped is not None
        return wrapped(*inputs)

    def finish(self) -> None:
        """PyTorch's ends a backward by itself."""
        if self._ours is not None:
            self._ours.finish_gradient_synchronization()

    def release(self) -> None:
        """Take its hooks off the module, and free what it holds."""
        if self._ours is not None:
            self._ours.release()
        self._ours = self._torch = None


def _torch_ddp(module: nn.Module) -> DistributedDataParallel:
    """With its own defaults, as the homework has it; the module lies on its device already."""
    device = next(module.parameters()).device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return DistributedDataParallel(module)
