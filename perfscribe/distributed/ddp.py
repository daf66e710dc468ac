"""Data parallelism in four ways, which differ in how gradients are grouped and when the groups are sent.

| wrapper | one all-reduce for | sent |
| --- | --- | --- |
| NaiveDDP | each gradient | after backward, one after the other |
| FlatDDP | all gradients, copied into one flat tensor | after backward |
| OverlappedDDP | each gradient | during backward, as it is ready |
| BucketedDDP | each bucket of gradients | during backward, as it is full |

Sources: handout of Stanford CS336, assignment 2 (systems), 1.0.4, problems naive_ddp to ddp_overlap_bucketed;
Li et al., PyTorch Distributed, VLDB 2020 (buckets, reverse order, section 3.2).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.analytic.bucket_model import BYTES_PER_MB, fill_buckets
from perfscribe.distributed.broadcasting import broadcast_all
from perfscribe.distributed.process_group import backends, families, require_group

Observer = Callable[[str], AbstractContextManager[object]]


@dataclass
class Traffic:
    """Number of all-reduces of gradients since the last reset, and the bytes that this rank passed to them."""

    calls: int = 0
    bytes: int = 0

    def reset(self) -> None:
        """Restart the counts at 0."""
        self.calls = self.bytes = 0


class DataParallel(nn.Module, abc.ABC):
    """Base of the wrappers: a module with a replica on each rank of the default process group.

    On construction rank 0's parameters and buffers, including frozen ones, overwrite the others'; later changes of
    buffers stay local. A step is forward, backward, finish_gradient_synchronization(), optimizer step; every parameter
    that is not frozen, at least one, needs a gradient in it. NCCL averages (AVG); elsewhere gradients are divided by
    the world size before they are summed.

    traffic: counts of all-reduces and bytes. around: attribute, a function of a part's name ("flatten", "launch",
    "wait", "unflatten") that returns the context in which the part runs; callers replace it to time parts.
    Raises RuntimeError without a process group.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.group = module, require_group(type(self).__name__)
        self.traffic = Traffic()
        self.around: Observer = lambda _: _UNOBSERVED
        self._enabled = True
        # Reverse order of registration: roughly the order in which backward produces gradients.
        self._trainable = [parameter for parameter in reversed(list(module.parameters())) if parameter.requires_grad]
        nccl = backends(self.group).get(self._trainable[0].device.type) == "nccl"
        self._divisor = 1 if nccl else dist.get_world_size(self.group)
        self._options = dist.AllreduceOptions(), dist.AllreduceCoalescedOptions()
        for options in self._options:
            options.reduceOp = dist.ReduceOp.AVG if nccl else dist.ReduceOp.SUM  # type: ignore[assignment]
            options.asyncOp = True
        broadcast_all([(tensor, 0) for tensor in (*module.parameters(), *module.buffers())], self.group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's forward."""
        return self.module(*args, **kwargs)

    @contextmanager
    def communication_off(self) -> Iterator[None]:
        """Leave out only the all-reduces within the block, to time a step without them; the replicas diverge.

        Traffic still counts them.
        """
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """Average the gradients after a backward, or wait for those that were sent during it.

        NCCL: the current stream waits, not the host; gloo: the host waits. All ranks must call it equally often.
        The overlapping wrappers raise RuntimeError after a missing gradient or a second backward.
        """
        self._finish()

    def release(self) -> None:
        """Remove what the wrapper attached to the module: nothing, unless a subclass sends during backward."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Average what backward has not sent and wait for the rest; needs a gradient of every trainable parameter."""

    def _start(self, tensors: list[Tensor]) -> dist.Work | None:
        """Start averaging tensors of one dtype and device by one collective, in place."""
        with self.around("launch"):
            if self._divisor > 1:
                torch._foreach_div_(tensors, self._divisor)
            self.traffic.calls += 1
            self.traffic.bytes += sum([tensor.nbytes for tensor in tensors])
            if not self._enabled:
                return None
            # Called on the group itself: torch.distributed's functions check and build options in each call, on the
            # thread that also launches the backward pass.
            single, coalesced = self._options
            return (
                self.group.allreduce(tensors, single)
                if len(tensors) == 1
                else self.group.allreduce_coalesced(tensors, coalesced)
            )

    def _wait(self, work: dist.Work | None) -> None:
        with self.around("wait"):
            if work is not None:
                work.wait()


class NaiveDDP(DataParallel):
    """One all-reduce per gradient after backward, each waited for before the next is sent.

    Handout, problem naive_ddp.
    """

    def _finish(self) -> None:
        for parameter in self._trainable:
            self._wait(self._start([_gradient(parameter)]))


class FlatDDP(DataParallel):
    """One all-reduce for all gradients after backward, through a flat copy of the same total size.

    Handout, problem minimal_ddp_flat_benchmarking. Gradients of several dtypes use one copy and one call per dtype.
    """

    def _finish(self) -> None:
        for family in families(self._trainable):
            gradients = [_gradient(self._trainable[i]) for i in family]
            with self.around("flatten"):
                flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self._wait(self._start([flat]))
            with self.around("unflatten"):
                parts = flat.split([gradient.numel() for gradient in gradients])
                torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])


class OverlappingDataParallel(DataParallel):
    """Base of the wrappers that send during backward: a group of gradients, once it and all before it are ready.

    Collectives match by order, so all ranks send the groups in the same order, in whatever order autograd works
    (Li et al. 2020, section 3.2.3). finish_gradient_synchronization() raises RuntimeError if a gradient is missing, or
    if backward ran twice since the last call.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._groups = self._form_groups()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._note_gradient, number))
            for number, members in enumerate(self._groups)
            for parameter in members
        ]
        self._begin()

    def release(self) -> None:
        """Remove the hooks from the module's parameters."""
        for hook in self._hooks:
            hook.remove()

    @abc.abstractmethod
    def _form_groups(self) -> list[list[nn.Parameter]]:
        """Return the groups, in the order in which they are sent."""

    def _begin(self) -> None:
        self._waiting = [len(members) for members in self._groups]  # number of gradients not ready, by group
        self._works: list[dist.Work | None] = []

    def _note_gradient(self, group: int, _: Tensor) -> None:
        """Note that a gradient of the group is complete; send all groups that are now due."""
        self._waiting[group] -= 1
        while len(self._works) < len(self._groups) and not self._waiting[len(self._works)]:
            with torch.no_grad():
                self._works.append(self._start([_gradient(p) for p in self._groups[len(self._works)]]))

    def _finish(self) -> None:
        if any(self._waiting):
            raise RuntimeError(f"{type(self).__name__}: not one gradient for each parameter since the last finish")
        for work in self._works:
            self._wait(work)
        self._begin()


class OverlappedDDP(OverlappingDataParallel):
    """One asynchronous all-reduce per gradient, sent during backward.

    Handout, problem ddp_overlap_individual_parameters.
    """

    def _form_groups(self) -> list[list[nn.Parameter]]:
        return [[parameter] for parameter in self._trainable]


class BucketedDDP(OverlappingDataParallel):
    """One asynchronous all-reduce per bucket, sent during backward.

    Handout, problem ddp_overlap_bucketed. Parameters fill buckets of at most bucket_size_mb (MB = 10⁶ bytes) in reverse
    order of registration; each dtype and device has its own buckets, and a larger parameter gets a bucket to itself.
    NCCL reduces a bucket's gradients in place by one group call; gloo copies them to a flat tensor and back. Gradients
    are not views of a bucket: zero_grad(set_to_none=True) is safe. Raises ValueError unless bucket_size_mb is above 0.
    """

    def __init__(self, module: nn.Module, bucket_size_mb: float) -> None:
        self._capacity_bytes = bucket_size_mb * BYTES_PER_MB
        super().__init__(module)

    @property
    def bucket_sizes_bytes(self) -> list[int]:
        """Bytes of gradients in each bucket, in the order in which they are sent."""
        return [sum(parameter.nbytes for parameter in bucket) for bucket in self._groups]

    def _form_groups(self) -> list[list[nn.Parameter]]:
        buckets = [
            [family[i] for i in bucket]
            for family in families(self._trainable)
            for bucket in fill_buckets([self._trainable[i].nbytes for i in family], self._capacity_bytes)
        ]
        buckets.sort(key=lambda bucket: bucket[-1])  # the order in which they become full
        return [[self._trainable[i] for i in bucket] for bucket in buckets]


# Without further arguments, by the names of the factors implementation and wrapper.
BY_NAME: dict[str, type[DataParallel]] = {"naive": NaiveDDP, "flat": FlatDDP, "overlap_individual": OverlappedDDP}


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


_UNOBSERVED = nullcontext()
