"""The implementations under one interface: a module that is called, finish(), without_communication()."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perfscribe.distributed.ddp import BucketedDDP, DataParallel, FlatDDP, NaiveDDP, OverlappedDDP
from perfscribe.experiments.ddp import variants as v


class Wrapped:
    """A module that one implementation keeps equal on all ranks; its parameters are rank 0's from here on."""

    def __init__(self, variant: v.Variant, module: nn.Module) -> None:
        self.variant = variant
        self.ours = _ours(variant, module)
        self._torch = None if self.ours is not None else _torch_ddp(module)
        self.call: nn.Module = self.ours if self.ours is not None else self._of_torch

    @property
    def _of_torch(self) -> DistributedDataParallel:
        assert self._torch is not None
        return self._torch

    def finish(self) -> None:
        """End a backward: gradients are averages. PyTorch's ends it by itself."""
        if self.ours is not None:
            self.ours.finish_gradient_synchronization()

    def without_communication(self) -> AbstractContextManager[Any]:
        """Steps in it, forward included, send nothing; PyTorch's no_sync() leaves out its copies as well."""
        if self.ours is not None:
            return self.ours.communication_off()
        found: AbstractContextManager[Any] = self._of_torch.no_sync()
        return found

    def release(self) -> None:
        """Take its hooks off the module, and free what it holds."""
        if self.ours is not None:
            self.ours.release()
            return
        self._torch = None
        del self.call  # the last reference: its reducer takes its hooks along

    def facts(self) -> dict[str, float]:
        """All-reduces since the last call and the bytes handed over to them; how many buckets there are."""
        found: dict[str, float] = {}
        if self.ours is not None:
            traffic = self.ours.traffic
            found = {"all_reduces": traffic.calls, "sent_bytes": traffic.bytes}
            traffic.reset()
        if isinstance(self.ours, BucketedDDP):
            found["buckets"] = len(self.ours.bucket_sizes_bytes)
        return found


def _ours(variant: v.Variant, module: nn.Module) -> DataParallel | None:
    if variant.implementation == v.BUCKETED:
        return BucketedDDP(module, variant.bucket_mb)
    kinds: dict[str, type[DataParallel]] = {v.NAIVE: NaiveDDP, v.FLAT: FlatDDP, v.OVERLAP: OverlappedDDP}
    kind = kinds.get(variant.implementation)
    return None if kind is None else kind(module)


def _torch_ddp(module: nn.Module) -> DistributedDataParallel:
    """PyTorch's with its own defaults, but for buffers: here they are constants, and ours do not send them either."""
    device = next(module.parameters()).device
    with warnings.catch_warnings(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        warnings.simplefilter("ignore", FutureWarning)  # newer torch has another name for buffers at construction
        # One device a rank, on which the module lies already: no device_ids, which would only move the inputs.
        return DistributedDataParallel(module, broadcast_buffers=False)
