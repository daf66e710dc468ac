"""One plan on a rank: the model wrapped, checked against the unwrapped one, its traffic and memory looked at."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from perfscribe import precision
from perfscribe.counters import fsdp_traffic
from perfscribe.experiments.strategies import model as models
from perfscribe.experiments.strategies.words import plan_of
from perfscribe.memory import PeakMemory
from perfscribe.parallel import fsdp_applied
from perfscribe.parallel.collective_bytes import Collectives
from perfscribe.parallel.fsdp import blocks_of, wrap
from perfscribe.parallel.fsdp_state import Gathered, held_bytes
from perfscribe.parallel.fsdp_training import Training, local

if TYPE_CHECKING:
    from perfscribe.parallel.rank import Rank

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
        torch.cuda.empty_cache()


class Trained:
    """A plan's training on this rank, after its first steps. ids: (batch, seq_len), this rank's own.

    ArithmeticError: the first loss is not that of the model before it was wrapped. ValueError: the wrapped model is
    not what was asked for.
    """

    def __init__(self, factors: Mapping[str, Any], rank: Rank) -> None:
        self.device, plan = rank.device, plan_of(factors)
        precision.set_matmul_precision("fp32")
        self.allocated_before = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0
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
        self.training.step([self.ids])  # DDP puts its buckets in order, the optimizer has its state

    def _loss_unwrapped(self, model: nn.Module, dtype: str) -> float:
        with torch.no_grad(), precision.autocast(self.device.type, dtype):
            return float(models.loss_of(model, self.ids))

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

    def memory(self) -> dict[str, Any]:
        """State between backward and update, and the peaks of a whole step, what others hold left out."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        with PeakMemory(self.device) as memory:
            self.training.passes([self.ids])
            held = held_bytes(self.training.optimizer)
            self.training.update()
            self.training.zero_grad()
        first = local(next(iter(self.training.optimizer.param_groups[0]["params"])))
        found: dict[str, Any] = {f"{kind.replace(' ', '_')}_bytes": size for kind, size in held.items()}
        found |= {"state_bytes": sum(held.values()), "state_device": first.device.type}
        found["peak_allocated_bytes"] = memory.peak_allocated_bytes - self.allocated_before
        if memory.peak_reserved_bytes is not None:
            found["peak_reserved_bytes"] = memory.peak_reserved_bytes
        return found


def random_ids(factors: Mapping[str, Any], rank: Rank) -> Tensor:
    """Token ids (batch, seq_len) of this rank, the same for all plans."""
    generator = torch.Generator().manual_seed(rank.place.rank + 1)
    shape = (factors["batch"], factors["seq_len"])
    return torch.randint(models.vocabulary(factors["model"]), shape, generator=generator).to(rank.device)
