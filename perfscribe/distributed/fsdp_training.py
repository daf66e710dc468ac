"""A training step of a wrapped model (micro-batches, loss scaling for fp16, AdamW), and the state that a rank holds.

Gradients of all but the last micro-batch are accumulated locally; the last one's backward exchanges the sums.

Each storage is counted once: FSDP2's gradients are pieces of one flat tensor, FSDP1's parameters are views of one, and
padding that no view shows uses memory all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.analytic.fsdp_memory import GRADIENTS, PARAMETERS, STATE
from perfscribe.distributed.fsdp import Wrapped, autocast, exchange, flat_parameters, local

# Small enough that none of a few steps overflows and is skipped, as with torch's 2^16.
FIRST_SCALE = 2.0**10
LEARNING_RATE, WEIGHT_DECAY = 5e-5, 0.01

Loss = Callable[[torch.nn.Module, Any], Tensor]
Storages = dict[tuple[str, int], int]  # bytes by device and address


class LocalGradScaler(torch.amp.GradScaler):
    """torch's scaler, which checks this rank's shards for infinities, on any device, and combines the ranks' results.

    overflowed: whether any rank had an infinity at the last unscale_().
    torch's scaler exchanges the result on the gradients' device, which NCCL does not serve for shards on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type, init_scale=FIRST_SCALE)
        self._on = device
        self.overflowed = False

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        with torch.no_grad():
            gradients = local_gradients(optimizer)
            for device in {shard.device for shard in gradients}:
                shards, overflow = (
                    [shard for shard in gradients if shard.device == device],
                    found_inf.to(device, copy=True),
                )
                torch._amp_foreach_non_finite_check_and_unscale_(shards, overflow, inv_scale.to(device))
                found_inf.copy_(torch.maximum(found_inf, overflow.to(found_inf.device)))
        everyone = found_inf.to(self._on)
        dist.all_reduce(everyone, dist.ReduceOp.MAX)
        self.overflowed = bool(everyone.item())
        return {found_inf.device: found_inf.copy_(everyone)}


class FsdpTraining:
    """A wrapped model, its AdamW optimizer, and its steps.

    loss_of(module, batch): mean loss of a micro-batch, a scalar in fp32. everywhere: exchange gradients after each
    micro-batch instead of after the last. optimizer: torch's fused AdamW.
    """

    def __init__(self, wrapped: Wrapped, loss_of: Loss, *, everywhere: bool = False) -> None:
        self.wrapped, self.module, self._loss_of, self._everywhere = wrapped, wrapped.module, loss_of, everywhere
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
        )
        self._scaler = LocalGradScaler(wrapped.device) if wrapped.plan.dtype == "fp16" else None

    @property
    def loss_scale(self) -> float:
        """Scale of the gradients of fp16 products; it falls with each skipped step."""
        return self._scaler.get_scale() if self._scaler is not None else 1.0

    def zero_grad(self) -> None:
        """Free the gradients' memory."""
        self.optimizer.zero_grad(set_to_none=True)

    def passes(self, batches: Sequence[Any], after_forward: Callable[[], object] = lambda: None) -> Tensor:
        """Run forward and backward of each micro-batch; returns the mean loss, detached. Gradients are of the mean."""
        total: Tensor | None = None
        for number, batch in enumerate(batches):
            with exchange(self.module, self._everywhere or number == len(batches) - 1):
                with autocast(self.module, self.wrapped.device.type, self.wrapped.plan.dtype):
                    loss = self._loss_of(self.module, batch) / len(batches)
                after_forward()
                total = loss.detach() if total is None else total + loss.detach()
                (self._scaler.scale(loss) if self._scaler is not None else loss).backward()  # type: ignore[no-untyped-call]
                del loss
        assert total is not None
        return total

    def update(self) -> None:
        """Run AdamW's step; with a scaler it is skipped if a gradient has overflowed."""
        if self._scaler is None:
            self.optimizer.step()
            return
        # Not the scaler's step(), which passes fused optimizers a flag that may still be in transfer to the CPU.
        self._scaler.unscale_(self.optimizer)
        if not self._scaler.overflowed:
            self.optimizer.step()
        self._scaler.update()

    def step(self, batches: Sequence[Any]) -> Tensor:
        """Run a whole step, after which gradients are freed; returns the mean loss of this rank's batches."""
        loss = self.passes(batches)
        self.update()
        self.zero_grad()
        return loss


# --- state ------------------------------------------------------------------------------------------------------


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _tensors(states: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def local_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return this rank's shards of the gradients, without empty ones."""
    return [shard for gradient in _gradients(_parameters(optimizer)) if (shard := local(gradient)).numel()]


def storages(tensors: Iterable[Tensor]) -> Storages:
    """Return the bytes of the storages behind this rank's shards, by device and address."""
    sizes: Storages = {}
    for tensor in tensors:
        shard = local(tensor.detach())
        storage = shard.untyped_storage()
        if storage.nbytes():
            sizes[str(shard.device), storage.data_ptr()] = storage.nbytes()
    return sizes


def held_bytes(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return bytes by kind, on any device; scalars of the optimizer (step counters) are omitted."""
    parameters = _parameters(optimizer)
    state = [value for value in _tensors(optimizer.state.values()) if value.dim()]
    kinds = {PARAMETERS: parameters, GRADIENTS: _gradients(parameters), STATE: state}
    return {kind: sum(storages(tensors).values()) for kind, tensors in kinds.items()}


def tensors_of(training: FsdpTraining) -> Iterator[Tensor]:
    """Yield all tensors held between steps: parameters, buffers, gradients, optimizer state, FSDP1's flat tensors.

    The flat tensors include those that stay gathered, and their shards' gradients, which FSDP1 keeps after those of the
    parameters are gone. DDP's buckets are not included: they are visible, as gradients, only within a step.
    """
    parameters, flat = _parameters(training.optimizer), flat_parameters(training.module)
    yield from (*parameters, *training.module.parameters(), *training.module.buffers(), *flat)
    yield from _gradients((*parameters, *flat))
    yield from _tensors((*training.optimizer.state.values(), *(vars(parameter) for parameter in flat)))


def bytes_on(device: torch.device, tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages behind this rank's shards on a device of this type."""
    sizes = storages(tensors)
    return sum(size for (where, _), size in sizes.items() if torch.device(where).type == device.type)


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
        self._flat = flat_parameters(module)
        self._at_rest = storages(module.parameters())
        self.most_bytes = 0

    def now_bytes(self) -> int:
        """Return the bytes gathered now; most_bytes keeps the maximum."""
        if self._flat:
            whole: list[Tensor | None] = [getattr(parameter, "_full_param_padded", None) for parameter in self._flat]
            total = sum(tensor.untyped_storage().nbytes() for tensor in whole if tensor is not None)
        else:
            now = storages(self._module.parameters())
            total = sum(size for place, size in now.items() if self._at_rest.get(place) != size)
        self.most_bytes = max(self.most_bytes, total)
        return total

    def note(self, *_: object) -> None:
        """Update most_bytes; usable as a hook."""
        self.now_bytes()
