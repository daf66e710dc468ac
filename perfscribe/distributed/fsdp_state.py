"""Measures the training state that a rank holds: storages of its parameters, gradients and optimizer state.

Each storage is counted once: FSDP2's gradients are pieces of one flat tensor, FSDP1's parameters are views of one, and
padding that no view shows uses memory all the same.
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
    """Return the bytes of the storages behind this rank's shards, by device and address."""
    found: Storages = {}
    for tensor in tensors:
        shard = local(tensor.detach())
        storage = shard.untyped_storage()
        if storage.nbytes():
            found[str(shard.device), storage.data_ptr()] = storage.nbytes()
    return found


def held_bytes(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return bytes by kind, on any device; scalars of the optimizer (step counters) are omitted."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
    kinds = {PARAMETERS: parameters, GRADIENTS: gradients, STATE: [value for value in state if value.dim()]}
    return {kind: sum(storages(tensors).values()) for kind, tensors in kinds.items()}


def tensors_of(training: FsdpTraining) -> Iterator[Tensor]:
    """Yield all tensors held between steps: parameters, buffers, gradients, optimizer state, FSDP1's flat tensors.

    The flat tensors include those that stay gathered, and their shards' gradients, which FSDP1 keeps after those of the
    parameters are gone. DDP's buckets are not included: they are visible, as gradients, only within a step.
    """
    parameters = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    flat = _flat_parameters(training.module)
    yield from (*parameters, *training.module.parameters(), *training.module.buffers(), *flat)
    yield from (one.grad for one in (*parameters, *flat) if one.grad is not None)
    held = [*training.optimizer.state.values(), *map(vars, flat)]
    yield from (value for of in held for value in of.values() if isinstance(value, Tensor))


def bytes_on(device: torch.device, tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages behind this rank's shards on a device of this type."""
    found = storages(tensors)
    return sum(size for (where, _), size in found.items() if torch.device(where).type == device.type)


def release(device: torch.device, tensors: Iterable[Tensor]) -> None:
    """Free the memory behind unused tensors, even if something still refers to them.

    C++ may keep parameters in reference cycles that Python's collector cannot see, as with FSDP1 if nothing is sharded.
    Storages on another type of device are left to the collector.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # they may still be in use
    for tensor in tensors:
        storage = local(tensor.detach()).untyped_storage()
        if storage.device.type == device.type and storage.resizable():
            storage.resize_(0)


class Gathered:
    """Tracks how much of a model is gathered: parameters whose storages differ from those at rest.

    Create it while the model is at rest. FSDP1 keeps a unit's gathered parameters in one flat tensor, even when the
    parameters themselves are views of the shard again.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._flat = _flat_parameters(module)
        self._at_rest = storages(module.parameters())
        self.most_bytes = 0

    def now_bytes(self) -> int:
        """Return the bytes gathered now; most_bytes keeps the maximum."""
        if self._flat:
            whole: list[Tensor | None] = [getattr(parameter, "_full_param_padded", None) for parameter in self._flat]
            found = sum(tensor.untyped_storage().nbytes() for tensor in whole if tensor is not None)
        else:
            now = storages(self._module.parameters())
            found = sum(size for place, size in now.items() if self._at_rest.get(place) != size)
        self.most_bytes = max(self.most_bytes, found)
        return found

    def note(self, *_: object) -> None:
        """Update most_bytes; usable as a hook."""
        self.now_bytes()


def _flat_parameters(module: torch.nn.Module) -> list[Tensor]:
    """Return FSDP1's flat parameters, one per unit with parameters."""
    units = FullyShardedDataParallel.fsdp_modules(module)
    return [unit._handle.flat_param for unit in units if unit._handle is not None]
