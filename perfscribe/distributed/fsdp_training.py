"""A training step of a wrapped model: micro-batches, loss scaling for fp16, AdamW.

Gradients of all but the last micro-batch are accumulated locally; the last one's backward exchanges the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from perfscribe.analytic.fsdp_plan import DDP, FSDP2, SINGLE
from perfscribe.distributed.fsdp import Wrapped
from perfscribe.instruments import precision

# Small enough that none of a few steps overflows and is skipped, as with torch's 2^16.
FIRST_SCALE = 2.0**10
LEARNING_RATE, WEIGHT_DECAY = 5e-5, 0.01

Loss = Callable[[torch.nn.Module, Any], Tensor]


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
                shards, found = (
                    [shard for shard in gradients if shard.device == device],
                    found_inf.to(device, copy=True),
                )
                torch._amp_foreach_non_finite_check_and_unscale_(shards, found, inv_scale.to(device))
                found_inf.copy_(torch.maximum(found_inf, found.to(found_inf.device)))
        everyone = found_inf.to(self._on)
        dist.all_reduce(everyone, dist.ReduceOp.MAX)
        self.overflowed = bool(everyone.item())
        return {found_inf.device: found_inf.copy_(everyone)}


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return this rank's shards of the gradients, without empty ones."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    shards = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    return [shard for shard in shards if shard.numel()]


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

    def loss(self, batch: Any) -> Tensor:
        """Run forward and return the loss. FSDP casts what it gathers; without FSDP, autocast is used."""
        plan = self.wrapped.plan
        cast = precision.autocast(self.wrapped.device.type, plan.dtype) if plan.api in (SINGLE, DDP) else nullcontext()
        with cast:
            return self._loss_of(self.module, batch)

    def passes(self, batches: Sequence[Any], after_forward: Callable[[], object] = lambda: None) -> Tensor:
        """Run forward and backward of each micro-batch; returns the mean loss, detached. Gradients are of the mean."""
        total: Tensor | None = None
        for number, batch in enumerate(batches):
            with self._exchange(self._everywhere or number == len(batches) - 1):
                loss = self.loss(batch) / len(batches)
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

    def _exchange(self, now: bool) -> AbstractContextManager[Any]:
        """Return a context for a micro-batch's passes that exchanges gradients or accumulates them locally."""
        module: Any = self.module
        if self.wrapped.plan.api == FSDP2:
            module.set_requires_gradient_sync(now)
            return nullcontext()
        if self.wrapped.plan.api == SINGLE or now:
            return nullcontext()
        context: AbstractContextManager[Any] = module.no_sync()
        return context
