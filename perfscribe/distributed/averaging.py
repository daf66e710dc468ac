"""Averages of gradients over the ranks of a process group: the collectives, what they carried, and their switches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.distributed.process_group import backends, message_device

Observer = Callable[[str], AbstractContextManager[object]]


@dataclass
class Traffic:
    """All-reduces of gradients since the last reset: calls, and the bytes that this rank handed over.

    The agreement on which gradients exist (one byte a parameter and backward) is not in it.
    """

    calls: int = 0
    bytes: int = 0

    def reset(self) -> None:
        """Begin again at 0."""
        self.calls = self.bytes = 0


Copies = list[tuple[Tensor, Tensor]]  # gradient, and where its average comes back


class Pending:
    """An average under way; wait() puts it into the gradients."""

    def __init__(self, work: dist.Work | None, sent: list[Tensor], copies: Copies) -> None:
        self._work, self._sent, self._copies = work, sent, copies

    def wait(self, around: Observer) -> None:
        """Wait (NCCL: the current stream does, gloo: the host) and copy back what was sent from a copy."""
        if self._work is not None:
            with around("wait"):
                self._work.wait()
        if self._copies:
            with around("unflatten"):
                torch._foreach_copy_([to for to, _ in self._copies], [of for _, of in self._copies])


class Averager:
    """Averages gradients over a process group.

    NCCL divides while it reduces (its AVG). Gloo has no AVG in all versions: there gradients are divided by the number
    of ranks first and then summed, so that the sum stays as small as the average (as torch's DistributedDataParallel).

    traffic counts what was sent. around(name) is entered around each part ("flatten", "launch", "wait", "unflatten"):
    an experiment puts a timer there that synchronises the device first and last, or a profiler's range.
    enabled = False leaves the collectives out and nothing else: copies, divisions and hooks stay, so that the
    difference of two steps is what the communication adds.

    Collectives are called on the group itself, with options made once: torch.distributed's functions check and build
    them anew in each call, on the thread that also launches the backward pass.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.backends = backends(group)
        self.world_size = dist.get_world_size(group)
        self.traffic = Traffic()
        self.around: Observer = _nothing_around
        self.enabled = True
        self._all_ones: Tensor | None = None
        self._options = {way: _options(*way) for way in itertools.product((False, True), repeat=2)}

    def start(self, gradients: Sequence[Tensor], *, flatten: bool = False) -> Pending:
        """Begin the average of gradients of one dtype and device, by one collective; they must not change meanwhile.

        flatten: through one flat copy. Otherwise they are sent from where they lie, several of them by one group call
        of NCCL (gloo flattens them itself); a gradient that is not contiguous is sent from a copy.
        """
        sent, copies = self._flat_copy(gradients) if flatten else contiguous(gradients)
        return self.send(sent, copies)

    def flat(self, gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Gradients of one dtype and device copied into one flat tensor; it, and its parts in their shapes."""
        with self.around("flatten"):
            flat = torch.empty(
                sum([g.numel() for g in gradients]), dtype=gradients[0].dtype, device=gradients[0].device
            )
            parts = flat.split([gradient.numel() for gradient in gradients])
            shaped = [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]
            torch._foreach_copy_(shaped, list(gradients))
        return flat, shaped

    def send(self, sent: list[Tensor], copies: Copies, *, on_current_stream: bool = False) -> Pending:
        """Begin the average of contiguous tensors, in place.

        on_current_stream: there, where the backend has one collective run on the current stream (NCCL); the caller
        lets others wait for it, and keeps the tensors until then. Otherwise on a stream of the backend.
        """
        with self.around("launch"):
            averages = self.backends.get(sent[0].device.type) == "nccl"
            if not averages:
                torch._foreach_div_(sent, self.world_size)
            self.traffic.calls += 1
            self.traffic.bytes += sum([tensor.nbytes for tensor in sent])
            work = self._all_reduce(sent, averages, not on_current_stream)
        return Pending(work, sent, copies)

    def agree(self, present: Sequence[bool], device: torch.device) -> list[bool]:
        """For each parameter whether any rank has its gradient; one byte each is reduced.

        A rank that has all of them knows the answer and does not wait for it on the host; the others must read it.
        device: where the gradients lie.
        """
        flags = list(present)
        if not self.enabled:
            return flags
        place = device if self.backends.get(device.type) == "nccl" else message_device(self.group)
        if not all(flags):
            tensor = torch.tensor(flags, dtype=torch.uint8, device=place)
            self._reduce_flags(tensor)
            return [bool(flag) for flag in tensor.tolist()]
        if self._all_ones is None or len(self._all_ones) != len(flags):
            self._all_ones = torch.ones(len(flags), dtype=torch.uint8, device=place)
        self._reduce_flags(self._all_ones)  # leaves ones
        return flags

    def _reduce_flags(self, flags: Tensor) -> None:
        """On NCCL's own stream, as gradients: a timeline shows communication apart from computation."""
        work = dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group, async_op=True)
        assert work is not None
        work.wait()

    def sends_from_place(self, device: torch.device) -> bool:
        """Whether one call can take several tensors on this device without a flat copy of ours; gloo: CPU alone."""
        backend = self.backends.get(device.type)
        return backend == "nccl" or (backend == "gloo" and device.type == "cpu")

    def _flat_copy(self, gradients: Sequence[Tensor]) -> tuple[list[Tensor], Copies]:
        flat, parts = self.flat(gradients)
        return [flat], list(zip(gradients, parts, strict=True))

    def _all_reduce(self, sent: list[Tensor], averages: bool, asynchronous: bool) -> dist.Work | None:
        """Asynchronous: on NCCL's own stream, behind what the current stream has been given."""
        if not self.enabled:
            return None
        one, several = self._options[averages, asynchronous]
        numbers = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in sent]
        if len(numbers) == 1:
            return self.group.allreduce(numbers, one)
        return self.group.allreduce_coalesced(numbers, several)


def _options(averages: bool, asynchronous: bool) -> tuple[dist.AllreduceOptions, dist.AllreduceCoalescedOptions]:
    operation: Any = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
    made = dist.AllreduceOptions(), dist.AllreduceCoalescedOptions()
    for options in made:
        options.reduceOp = operation
        options.asyncOp = asynchronous
    return made


def contiguous(gradients: Sequence[Tensor]) -> tuple[list[Tensor], Copies]:
    """What to send for each gradient, and (gradient, copy) for those that cannot be sent from where they lie."""
    sent = [gradient.contiguous() for gradient in gradients]
    return sent, [(to, of) for to, of in zip(gradients, sent, strict=True) if of is not to]


_NOTHING = nullcontext()


def _nothing_around(_: str) -> AbstractContextManager[object]:
    return _NOTHING
