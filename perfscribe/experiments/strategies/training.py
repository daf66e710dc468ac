"""One plan on a rank: the model wrapped, checked against the unwrapped one, its traffic and memory looked at."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from perfscribe.analytic import fsdp_traffic
from perfscribe.analytic.fsdp_plan import DDP
from perfscribe.distributed import fsdp_applied
from perfscribe.distributed.collective_bytes import Collectives
from perfscribe.distributed.fsdp import blocks_of, wrap
from perfscribe.distributed.fsdp_state import Gathered, bytes_on, held_bytes, release, tensors_of
from perfscribe.distributed.fsdp_training import Training, local
from perfscribe.experiments.strategies import model as models
from perfscribe.experiments.strategies.words import plan_of
from perfscribe.instruments import precision
from perfscribe.instruments.memory import PeakMemory

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

MODEL_SEED = 0
_STARTED: list[bool] = []
# Of the first loss, relative, from that of the model before it was wrapped.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2}


def fresh(device: torch.device) -> None:
    """Give back what an earlier plan may have left: modules and their hooks hold each other."""
    gc.collect()
    if not _STARTED:  # libraries: collecting and counting memory on a CPU would go through them each time
        gc.freeze()
        _STARTED.append(True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # blocks that other streams have used are free only after these
        torch.cuda.empty_cache()


def discard(training: Training, device: torch.device, more: Iterable[Tensor] = ()) -> None:
    """Give back what a training holds on its device, and more; it must not be used any more.

    Not left to references: DDP's reducer, and FSDP1's flat parameters of a single rank, outlive the last of Python's.
    """
    release(device, [*tensors_of(training), *more])
    for name in ("reducer", "logger"):  # DDP's, with its hooks on the parameters
        vars(training.module).pop(name, None)
    training.optimizer.state.clear()


class Trained:
    """A plan's training on this rank, after its first steps. ids: (batch, seq_len), this rank's own.

    ArithmeticError: the first loss is not that of the model before it was wrapped. ValueError: the wrapped model is
    not what was asked for.
    """

    def __init__(self, factors: Mapping[str, Any], rank: Rank) -> None:
        self.device, plan = rank.device, plan_of(factors)
        precision.set_matmul_precision("fp32")
        model, self._kind = models.build(factors["model"], MODEL_SEED, self.device)
        self.ids = random_ids(factors, rank)
        self.layout = models.layout(model, self._kind)
        expected = self._loss_unwrapped(model, plan.dtype)
        wrapped = wrap(model, plan, self.device, self._kind)
        del model
        self.applied = asdict(fsdp_applied.check(wrapped, rank.place.world_size, self.layout["blocks"]))
        self.training = Training(wrapped, models.loss_of)
        self.first_loss = float(self.training.step([self.ids]))
        if not abs(self.first_loss - expected) <= TOLERANCE[plan.dtype] * abs(expected):
            text = f"the first loss is {self.first_loss:.6g}, that of the model before it was wrapped {expected:.6g}"
            raise ArithmeticError(text)
        self._buckets = self._second_step()

    def _loss_unwrapped(self, model: nn.Module, dtype: str) -> float:
        with torch.no_grad(), precision.autocast(self.device.type, dtype):
            return float(models.loss_of(model, self.ids))

    def _second_step(self) -> list[Tensor]:
        """With it DDP puts its buckets in order. Views of these, its gradients: nothing else shows where they lie."""
        self.training.passes([self.ids])
        parameters = self.training.module.parameters() if self.training.wrapped.plan.api == DDP else ()
        buckets = [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]
        self.training.update()
        self.training.zero_grad()
        return buckets

    def close(self) -> None:
        """Give the device's memory back; nothing else may be called after it."""
        discard(self.training, self.device, self._buckets)
        self._buckets.clear()

    def at_rest_bytes(self) -> int:
        """Bytes that this plan holds on its device between steps."""
        return bytes_on(self.device, [*tensors_of(self.training), *self._buckets])

    def step(self) -> Tensor:
        """Forward, backward, update; the loss."""
        return self.training.step([self.ids])

    def traffic(self) -> dict[str, Any]:
        """Bytes that a step sends, by the collectives that it really calls, and what is gathered within it."""
        gathered = Gathered(self.training.module)
        blocks = blocks_of(self.training.module, self._kind)
        hook = blocks[-1].register_forward_pre_hook(gathered.note)
        within: list[int] = []  # at the end of forward: backward may compute blocks again
        with Collectives() as seen:
            self.training.passes([self.ids], lambda: within.extend((gathered.now_bytes(), gathered.most_bytes)))
            self.training.update()
        hook.remove()
        self.training.zero_grad()
        found = [
            fsdp_traffic.Message(call.operation, call.message_bytes, call.ranks)
            for call in seen.calls
            if call.ranks > 1 and call.message_bytes >= fsdp_traffic.LEAST_BYTES
        ]
        sent = {f"sent_{name}_bytes": size for name, size in fsdp_traffic.by_operation(found).items()}
        return {
            "sent_bytes": fsdp_traffic.sent_bytes(found),
            **sent,
            "collectives": len(found),
            "gathered_between_bytes": within[0],
            "gathered_most_bytes": within[1],
        }

    def memory(self, beside: Iterable[Trained] = ()) -> dict[str, Any]:
        """State between backward and update, and the peaks of a whole step, what others hold left out.

        beside: other plans on this device, at rest. others_bytes, on a GPU: what neither this plan nor they account
        for; where it is large, something was left behind that may go within the step and make the peak too low.
        """
        _without_scratch(self.device)
        own, known = self.at_rest_bytes(), sum(one.at_rest_bytes() for one in beside)
        with PeakMemory(self.device) as memory:
            self.training.passes([self.ids])
            held = held_bytes(self.training.optimizer)
            self.training.update()
            self.training.zero_grad()
        first = local(next(iter(self.training.optimizer.param_groups[0]["params"])))
        found: dict[str, Any] = {f"{kind.replace(' ', '_')}_bytes": size for kind, size in held.items()}
        found |= {"state_bytes": sum(held.values()), "state_device": first.device.type}
        found["peak_allocated_bytes"] = own + memory.peak_allocated_bytes - memory.allocated_before_bytes
        if memory.peak_reserved_bytes is not None:  # the allocator's own counters, which see all that lies there
            found["peak_reserved_bytes"] = memory.peak_reserved_bytes
            found["others_bytes"] = memory.allocated_before_bytes - own - known
        return found


def _without_scratch(device: torch.device) -> None:
    """Give back what no plan holds; cuBLAS takes its workspaces anew, so that they are in each plan's peak alike."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
    fresh(device)


def random_ids(factors: Mapping[str, Any], rank: Rank) -> Tensor:
    """Token ids (batch, seq_len) of this rank, the same for all plans."""
    generator = torch.Generator().manual_seed(rank.place.rank + 1)
    shape = (factors["batch"], factors["seq_len"])
    return torch.randint(models.vocabulary(factors["model"]), shape, generator=generator).to(rank.device)
