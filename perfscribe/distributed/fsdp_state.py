"""What of a training's state a rank really holds: the storages of its parameters, gradients and optimizer state.

Counted storage by storage, each once: FSDP2's gradients are pieces of one flat tensor, FSDP1's parameters views of one,
and padding that no view shows takes memory all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel

from perfscribe.analytic.fsdp_memory import GRADIENTS, PARAMETERS, STATE
from perfscribe.distributed.fsdp_training import FsdpTraining, local

Storages = dict[tuple[str, int], int]  # bytes by device and address


def storages(tensors: Iterable[Tensor]) -> Storages:
    """Bytes of the storages behind this rank's shards, by where they lie."""
    found: Storages = {}
    for tensor in tensors:
        shard = local(tensor.detach())
        storage = shard.untyped_storage()
        if storage.nbytes():
            found[str(shard.device), storage.data_ptr()] = storage.nbytes()
    return found


def held_bytes(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes by kind, on whichever device; scalars of the optimizer (step counters) are left out."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
    kinds = {PARAMETERS: parameters, GRADIENTS: gradients, STATE: [value for value in state if value.dim()]}
    return {kind: sum(storages(tensors).values()) for kind, tensors in kinds.items()}


def tensors_of(training: FsdpTraining) -> Iterator[Tensor]:
    """All that a training holds between steps: parameters, buffers, gradients, optimizer state, FSDP1's flat tensors.

    The latter also where they stay gathered, and with the gradients of their shards, which FSDP1 keeps where those of
    the parameters themselves are gone. Not DDP's buckets, which are seen as gradients within a step alone.
    """
    parameters = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    flat = _flat_parameters(training.module)
    yield from (*parameters, *training.module.parameters(), *training.module.buffers(), *flat)
    yield from (one.grad for one in (*parameters, *flat) if one.grad is not None)
    held = [*training.optimizer.state.values(), *map(vars, flat)]
    yield from (value for of in held for value in of.values() if isinstance(value, Tensor))


def bytes_on(device: torch.device, tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind this rank's shards that lie on a device of this type."""
    found = storages(tensors)
    return sum(size for (where, _), size in found.items() if torch.device(where).type == device.type)


def release(device: torch.device, tensors: Iterable[Tensor]) -> None:
    """Give the memory behind tensors back that are not used any more, whoever still refers to them.

    C++ may keep parameters in circles that Python's collector does not see, as FSDP1's are where nothing is sharded.
    Storages that lie on another type of device are left to the collector.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # nothing may be computing with them
    for tensor in tensors:
        storage = local(tensor.detach()).untyped_storage()
        if storage.device.type == device.type and storage.resizable():
            storage.resize_(0)


class Gathered:
    """Watches how much of a model is gathered: parameters that lie elsewhere than they do at rest.

    To be made while the model is at rest. FSDP1 keeps a unit's gathered parameters in one flat tensor, also where the
    parameters themselves are views of the shard again.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._flat = _flat_parameters(module)
        self._at_rest = storages(module.parameters())
        self.most_bytes = 0

    def now_bytes(self) -> int:
        """What is gathered at this moment; most_bytes keeps the largest of what was found."""
        if self._flat:
            whole: list[Tensor | None] = [getattr(parameter, "_full_param_padded", None) for parameter in self._flat]
            found = sum(tensor.untyped_storage().nbytes() for tensor in whole if tensor is not None)
        else:
            now = storages(self._module.parameters())
            found = sum(size for place, size in now.items() if self._at_rest.get(place) != size)
        self.most_bytes = max(self.most_bytes, found)
        return found

    def note(self, *_: object) -> None:
        """Look, as a hook."""
        self.now_bytes()


def _flat_parameters(module: torch.nn.Module) -> list[Tensor]:
    """FSDP1's, one for each unit that has parameters."""
    units = FullyShardedDataParallel.fsdp_modules(module)
    return [unit._handle.flat_param for unit in units if unit._handle is not None]
