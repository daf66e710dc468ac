"""Data parallelism in four ways, which differ in how gradients are grouped and when the groups are sent.

| wrapper | one all-reduce for | sent |
| --- | --- | --- |
| NaiveDDP | each gradient | after backward, one after the other |
| FlatDDP | all gradients, copied into one flat tensor | after backward |
| OverlappedDDP | each gradient | during backward, as it is ready |
| BucketedDDP | each bucket of gradients | during backward, as it is full |
"""

from __future__ import annotations

import abc

import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.analytic.bucket_model import BYTES_PER_MB, fill_buckets
from perfscribe.distributed.overlapping import OverlappingDataParallel
from perfscribe.distributed.replicas import DataParallel, families


class AveragingAfterBackward(DataParallel):
    """Averages all gradients when backward is over."""

    def _finish(self) -> bool:
        used = self._agree()
        present = [parameter for parameter, is_used in zip(self._trainable, used, strict=True) if is_used]
        gradients = [self._contribution(parameter) for parameter in present]
        self._average(gradients)
        for parameter, gradient in zip(present, gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
        return bool(present)

    @abc.abstractmethod
    def _average(self, gradients: list[Tensor]) -> None:
        """Turn gradients, of any dtypes and devices, into their averages, in place."""


class NaiveDDP(AveragingAfterBackward):
    """One all-reduce a gradient after backward, each waited for before the next is sent.

    Handout, problem naive_ddp.
    """

    def _average(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            self.averager.start([gradient]).wait(self.averager.around)


class FlatDDP(AveragingAfterBackward):
    """One all-reduce for all gradients after backward, from a flat copy.

    Handout, problem minimal_ddp_flat_benchmarking.
    The copy takes as many bytes as the gradients until finish returns. Gradients of several dtypes or devices take
    one flat copy and one all-reduce for each.
    """

    def _average(self, gradients: list[Tensor]) -> None:
        for family in families(gradients):
            pending = self.averager.start([gradients[i] for i in family], flatten=True)
            pending.wait(self.averager.around)


class OverlappedDDP(OverlappingDataParallel):
    """One asynchronous all-reduce a gradient, sent while backward goes on.

    Handout, problem ddp_overlap_individual_parameters.
    """

    def _grouped(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        return [[parameter] for parameter in parameters]


class BucketedDDP(OverlappingDataParallel):
    """One asynchronous all-reduce a bucket, sent while backward goes on.

    Handout, problem ddp_overlap_bucketed.
    Parameters fill buckets of at most bucket_size_mb (MB = 10⁶ bytes; None: one bucket) in reverse order of
    registration; each dtype and device has its own, and a larger parameter one to itself. A bucket's gradients are
    sent from where they lie by one group call (NCCL) or flattened by gloo itself: no step of ours copies a gradient,
    and zero_grad(set_to_none=True) takes nothing apart. flatten=True sends a flat copy of each bucket by one plain
    call instead, as is done always for tensors on a GPU with gloo; the gradients lie in that copy afterwards, so that
    none is copied back, and a bucket's memory is free once none of its gradients is held any more.
    ValueError: bucket_size_mb not above 0.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_size_mb: float | None,
        *,
        flatten: bool = False,
        group: dist.ProcessGroup | None = None,
        launch_thread: bool | None = None,
    ) -> None:
        if bucket_size_mb is not None and not bucket_size_mb > 0:
            raise ValueError(f"bucket_size_mb: expected a number above 0 or None, not {bucket_size_mb}")
        self._capacity_bytes = None if bucket_size_mb is None else bucket_size_mb * BYTES_PER_MB
        super().__init__(module, group=group, launch_thread=launch_thread)
        places = {parameter.device for parameter in self._trainable}
        self._flatten = flatten or not all(map(self.averager.sends_from_place, places))

    @property
    def bucket_sizes_bytes(self) -> list[int]:
        """Bytes of gradients in each bucket, in the order in which they are sent."""
        return [sum(parameter.nbytes for parameter in bucket) for bucket in self._groups]

    def _grouped(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        buckets = [
            [family[i] for i in bucket]
            for family in families(parameters)
            for bucket in fill_buckets([parameters[i].nbytes for i in family], self._capacity_bytes)
        ]
        buckets.sort(key=lambda bucket: bucket[-1])  # the order in which they become full
        return [[parameters[i] for i in bucket] for bucket in buckets]
