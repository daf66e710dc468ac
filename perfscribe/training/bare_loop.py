"""The workshop's training by a plain loop over fully_shard: what transformers.Trainer is compared with, and what
stands in for it on gloo, where Trainer does not shard.

The same steps as Trainer's: AdamW (fused on a GPU, as Trainer's; biases and norms decay, too, which Trainer spares),
linear schedule, gradients clipped, the loss a mean over all labels of an optimizer step on all ranks, gradients reduced
with its last batch, evaluation after each epoch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from perfscribe.training import dividing
from perfscribe.training.knobs import Knobs
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

IGNORED = -100
MAX_GRAD_NORM = 1.0  # Trainer's default
FUSED_ON = ("cuda",)  # devices on which AdamW is one kernel, as Trainer's by default; elsewhere PyTorch's own choice
Step = list[list[int]]  # of each accumulated batch the rows of one rank
Rows = dict[str, torch.Tensor]  # input_ids, attention_mask, labels: (rows, length), int64
LossFunction = Callable[[nn.Module, Rows, Any], torch.Tensor]


@dataclass
class Curve:
    """What a training gave. train_loss: of each optimizer step, over all ranks. eval_loss: after each epoch.

    runtime_s: of everything from the first step on, evaluation included, as Trainer's train_runtime.
    """

    train_loss: list[float] = field(default_factory=list)
    eval_loss: list[float] = field(default_factory=list)
    runtime_s: float = 0.0


def model_loss(model: nn.Module, batch: Rows, items: Any) -> torch.Tensor:
    """The loss that the model itself computes; items: labels to divide by, None for its own."""
    loss: torch.Tensor = model(**batch, num_items_in_batch=items)["loss"]
    return loss


class Loop:
    """A model, already divided where it is to be, and its optimizer, on one rank."""

    def __init__(self, model: nn.Module, knobs: Knobs, device: torch.device, loss: LossFunction = model_loss) -> None:
        self.model, self.knobs, self.device, self.loss = model, knobs, device, loss
        fused = True if device.type in FUSED_ON else None
        options: Any = {"weight_decay": knobs.weight_decay, "fused": fused}
        self.optimizer = torch.optim.AdamW(model.parameters(), knobs.learning_rate, **options)
        self.scaler = torch.amp.GradScaler(device.type, enabled=knobs.dtype == "fp16")
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1

    def autocast(self) -> AbstractContextManager[Any]:
        """Where nothing divides the model its forward pass casts; fully_shard casts by itself."""
        if self.knobs.dtype == "fp32" or isinstance(self.model, FSDPModule):
            return nullcontext()
        return torch.autocast(self.device.type, dividing.DTYPES[self.knobs.dtype])

    def step(self, batches: list[Rows], items: int, rate: float) -> torch.Tensor:
        """One optimizer step; this rank's part of the loss, on the device. items: labels of all ranks and batches."""
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            with self._synchronised(index == len(batches) - 1), self.autocast():
                loss = self.loss(self.model, batch, items)
                # Gradients are averaged over ranks, and the loss has been divided by the labels of all of them.
                self.scaler.scale(loss * self.ranks).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.knobs.learning_rate * rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Reduce gradients with the last batch alone."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        elif isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()

    @torch.no_grad()
    def evaluate(self, rows: Rows, rank: int) -> float:
        """The mean over rows of the mean loss of each one's batch, as Trainer has it; a collective."""
        self.model.eval()
        labels = labels_of(rows)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for chosen in evaluation_batches(len(labels), rank, self.ranks, self.knobs.batch_size):
            held = [max(row, 0) for row in chosen]
            batch = take(rows, held, self.device)
            batch["labels"][[row < 0 for row in chosen]] = IGNORED
            kept = [row for row in chosen if row >= 0]
            with self.autocast():
                loss = self.loss(self.model, batch, max(1, sum(labels[row] for row in kept)))
            sums += torch.tensor([float(loss) * len(kept), len(kept)], dtype=torch.float64, device=self.device)
        if dist.is_initialized():
            dist.all_reduce(sums)
        self.model.train()
        return float(sums[0] / sums[1])


def take(rows: Rows, chosen: list[int], device: torch.device) -> Rows:
    """Those rows, on the device."""
    return {name: held[chosen].to(device, non_blocking=True) for name, held in rows.items()}


def labels_of(rows: Rows) -> list[int]:
    """Labels of each row that the loss counts, the first place aside, which no token predicts."""
    counts: list[int] = (rows["labels"][:, 1:] != IGNORED).sum(dim=1).tolist()
    return counts


def train(
    loop: Loop,
    rows: Rows,
    evaluation: Rows,
    rank: int,
    speed: SpeedMeter,
    utilisation: UtilisationMeter,
    behind: int = 0,
    after_step: Callable[[int], None] = lambda done: None,
) -> Curve:
    """All epochs. Losses are read from the device at each epoch's end.

    behind: optimizer steps that a checkpoint has behind it: the loop goes on after them. after_step: called with the
    number of steps done so far.
    """
    curve, knobs = Curve(), loop.knobs
    counts = labels_of(rows)
    epoch_length = steps_per_epoch(knobs, len(counts), loop.ranks)
    last = epoch_length * knobs.num_epochs
    waiting: list[torch.Tensor] = []
    began, done = time.perf_counter(), 0
    loop.model.train()
    for epoch in range(knobs.num_epochs):
        for chosen, items in _steps(knobs, counts, epoch, rank, loop.ranks):
            done += 1
            if done <= behind:
                continue
            batches = [take(rows, batch, loop.device) for batch in chosen]
            speed.begin_step()
            waiting.append(loop.step(batches, items, linear_rate(done - 1, last)))
            speed.end_step()
            utilisation.sample()
            if done % knobs.logging_steps == 0:
                speed.log(done)
            after_step(done)
        speed.pause()
        if waiting:
            curve.train_loss += summed(waiting)
            waiting.clear()
            curve.eval_loss.append(loop.evaluate(evaluation, rank))
    curve.runtime_s = time.perf_counter() - began
    return curve


def steps_per_epoch(knobs: Knobs, rows: int, world_size: int) -> int:
    """Optimizer steps of an epoch, the last one perhaps of fewer batches; as Trainer counts them."""
    batches = -(-rows // (knobs.batch_size * world_size))
    return -(-batches // knobs.grad_acc)


def epoch_steps(knobs: Knobs, rows: int, epoch: int, rank: int, world_size: int) -> list[Step]:
    """The rows of one rank in every optimizer step of an epoch: shuffled by seed and epoch, alike on all ranks.

    Rows go round the ranks batch by batch; the first ones fill up the last batches, as Trainer's loader does.
    """
    order = list(range(rows))
    random.Random(f"{knobs.seed} {epoch}").shuffle(order)
    wide = knobs.batch_size * world_size
    order += [order[i % rows] for i in range(-rows % wide)]
    mine = range(rank * knobs.batch_size, len(order), wide)
    own = [order[at : at + knobs.batch_size] for at in mine]
    return [own[at : at + knobs.grad_acc] for at in range(0, len(own), knobs.grad_acc)]


def evaluation_batches(rows: int, rank: int, world_size: int, batch_size: int) -> list[list[int]]:
    """The rows of one rank to evaluate on, equally many batches on each; a row that fills up is -1."""
    wide = batch_size * world_size
    order = [*range(rows), *[-1] * (-rows % wide)]
    return [order[at : at + batch_size] for at in range(rank * batch_size, len(order), wide)]


def linear_rate(step: int, steps: int) -> float:
    """The share of the learning rate in optimizer step `step` (from 0) of `steps`: linear to 0, without warm-up."""
    return max(0.0, (steps - step) / steps)


def _steps(knobs: Knobs, counts: list[int], epoch: int, rank: int, ranks: int) -> Iterator[tuple[Step, int]]:
    """This rank's batches of each step, and the labels of all ranks' batches."""
    by_rank = [epoch_steps(knobs, len(counts), epoch, one, ranks) for one in range(ranks)]
    for own, *every in zip(by_rank[rank], *by_rank, strict=True):
        yield own, max(1, sum(counts[row] for batches in every for batch in batches for row in batch))


def summed(losses: list[torch.Tensor]) -> list[float]:
    """The losses of steps over all ranks, each of which holds its part; a collective."""
    stacked = torch.stack(losses).double()
    if dist.is_initialized():
        dist.all_reduce(stacked)
    found: list[float] = stacked.tolist()
    return found
