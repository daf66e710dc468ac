"""What the four data-parallel wrappers share: equal replicas, whose gradients are averaged after each backward.

Sources of the algorithms: handout of Stanford CS336, assignment 2 (systems), 1.0.4, problems naive_ddp to
ddp_overlap_bucketed; Li et al., PyTorch Distributed, VLDB 2020 (buckets, reverse order, parameters that only some
ranks use, section 3.2).
"""

from __future__ import annotations

import abc
import hashlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.distributed.averaging import Averager
from perfscribe.distributed.broadcasting import broadcast_all
from perfscribe.distributed.process_group import message_device, require_group

# The wrapper that averages a module's gradients; there is one at a time.
_wrapper_of: weakref.WeakKeyDictionary[nn.Module, weakref.ref[DataParallel]] = weakref.WeakKeyDictionary()


class DataParallel(nn.Module, abc.ABC):
    """A module with a replica on each rank of a process group.

    On construction parameters and buffers, frozen ones too, are overwritten by those of the group's rank 0; buffers
    stay each rank's own after that. The keys of state_dict begin with "module.".

    A step is forward, backward, finish_gradient_synchronization(), optimizer step. After finish each gradient is the
    mean over the ranks of what the ranks had in it. A tied parameter counts once. A parameter that only some ranks
    used has its sum over these ranks divided by the number of all ranks, on all ranks, as if the others had computed
    zero: the gradient of the mean of the ranks' losses. One that no rank used stays None on all ranks.
    A module has one wrapper at a time: a new one takes over, and the older one refuses to be used.

    group: the default process group for None. averager: counters, timing hook and switch of the communication.
    RuntimeError: no process group, or the ranks hold different models. TypeError: not a module, or a wrapped one.
    ValueError: nothing to train, or parameters on a device that the backend does not serve.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        group = require_group(name, group)
        if not isinstance(module, nn.Module) or isinstance(module, DataParallel):
            raise TypeError(f"{name}: expected a module that is not wrapped yet, not {type(module).__name__}")
        self.module = module
        self.averager = Averager(self._averaging_group(group))
        named = list(module.named_parameters())
        self._name_of = {parameter: name for name, parameter in named}
        # Reverse order of registration: about the order in which the backward pass gives gradients.
        self._trainable = [parameter for _, parameter in reversed(named) if parameter.requires_grad]
        self._frozen = [parameter for _, parameter in named if not parameter.requires_grad]
        self._require_trainable()
        self._require_same_model(group)
        self._synchronising = True
        self._released = False
        broadcast_all([(tensor, 0) for tensor in (*self._name_of, *module.buffers())], group)
        previous = _wrapper_of.get(module)
        if previous is not None and (older := previous()) is not None:
            older.release()
        _wrapper_of[module] = weakref.ref(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        self._require_in_use()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in it add to the rank's own gradients and send nothing; finish does nothing in it.

        The first backward after it, ended by finish, averages the sum.
        """
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    @contextmanager
    def communication_off(self) -> Iterator[None]:
        """All as ever but the collectives: to time a step without communication. The replicas drift apart in it."""
        self._settle()
        before, self.averager.enabled = self.averager.enabled, False
        try:
            yield
        finally:
            self._settle()
            self.averager.enabled = before

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> None:
        """End a backward: when the current stream gets past it (on gloo, when it returns), gradients are averages.

        All ranks must call it, as often as each other. Where ranks use different parameters, no other collective of
        the group may come between a backward and its finish.
        RuntimeError: no rank has a gradient (no backward was run), one is sparse, or a parameter that was frozen at
        construction has got one.
        """
        self._require_in_use()
        for parameter in self._frozen:
            if parameter.grad is not None:
                name = self._name_of[parameter]
                raise RuntimeError(f"{name} has a gradient, but was frozen when the module was wrapped: wrap it again")
        if self._synchronising and not self._finish():
            raise RuntimeError("finish_gradient_synchronization(): no rank has a gradient; call it after backward()")

    def release(self) -> None:
        """Let go of the module: gradients are no longer averaged by this wrapper, which can no longer be used."""
        self._released = True

    @abc.abstractmethod
    def _finish(self) -> bool:
        """Average what has to be averaged; whether any rank had a gradient."""

    def _averaging_group(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """The process group on which gradients are averaged."""
        return group

    def _settle(self) -> None:
        """Wait until all averages that were to begin have begun."""

    def _agree(self) -> list[bool]:
        """For each trainable parameter whether any rank has a gradient of it."""
        present = [parameter.grad is not None for parameter in self._trainable]
        return self.averager.agree(present, self._trainable[0].device)

    def _contribution(self, parameter: nn.Parameter) -> Tensor:
        """What this rank adds to the average: its gradient, or zeros where it has none."""
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter, memory_format=torch.preserve_format)
        if gradient.layout != torch.strided:
            raise RuntimeError(f"the gradient of {self._name_of[parameter]} is sparse, which is not supported")
        return gradient

    def _require_in_use(self) -> None:
        if self._released:
            raise RuntimeError(f"this {type(self).__name__} was released: another wrapper took its module over")

    def _require_trainable(self) -> None:
        name = type(self).__name__
        if not self._trainable:
            raise ValueError(f"{name}: the module has no parameter that requires a gradient")
        served = self.averager.backends
        for parameter in self._trainable:
            if parameter.device.type not in served:
                where = f"{self._name_of[parameter]} lies on {parameter.device}"
                raise ValueError(f"{name}: {where}, but the process group serves {', '.join(served)}")

    def _require_same_model(self, group: dist.ProcessGroup) -> None:
        lines = [f"{n} {tuple(t.shape)} {t.dtype} {t.requires_grad}" for t, n in self._name_of.items()]
        lines += [f"{n} {tuple(t.shape)} {t.dtype}" for n, t in self.module.named_buffers()]
        differing = ranks_that_differ("\n".join(lines), group)
        if differing:
            which = f"rank {', '.join(map(str, differing))}"
            what = "names, shapes, dtypes or frozen parameters"
            raise RuntimeError(f"{type(self).__name__}: {what} of {which} differ from rank 0's")


def ranks_that_differ(text: str, group: dist.ProcessGroup) -> list[int]:
    """The group ranks whose text is not rank 0's."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
    mine = torch.tensor([digest], dtype=torch.int64, device=message_device(group))
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, mine, group=group)
    return [rank for rank, other in enumerate(digests) if int(other) != int(digests[0])]


def families(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of the tensors that one collective can carry, by dtype and device, each in the order given."""
    found: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault((tensor.dtype, tensor.device), []).append(index)
    return list(found.values())
