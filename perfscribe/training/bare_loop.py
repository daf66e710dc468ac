"""The workshop's training as a plain loop over fully_shard: baseline for transformers.Trainer, and its replacement on
gloo, where Trainer does not shard.

Same steps as Trainer's: AdamW (fused on a GPU; unlike Trainer's, with weight decay of biases and norms), linear
schedule, clipped gradients, mean loss over all labels of an optimizer step on all ranks, gradients reduced with its
last batch, evaluation after each epoch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from perfscribe.distributed import fsdp
from perfscribe.training.knobs import Knobs
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

IGNORED = -100
MAX_GRAD_NORM = 1.0  # Trainer's default
FUSED_ON = ("cuda",)  # devices with fused AdamW, which is Trainer's default; elsewhere PyTorch's default
Step = list[list[int]]  # rows of one rank, by accumulated batch
Rows = dict[str, torch.Tensor]  # input_ids, attention_mask, labels: (rows, length), int64
LossFunction = Callable[[nn.Module, Rows, Any], torch.Tensor]


@dataclass
class Curve:
    """Results of a training. train_loss: of each optimizer step, over all ranks. eval_loss: after each epoch.

    runtime_s: from the first step to the end, evaluation included, like Trainer's train_runtime. evaluation_s,
    checkpoints_s: its parts.
    """

    train_loss: list[float] = field(default_factory=list)
    eval_loss: list[float] = field(default_factory=list)
    runtime_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoints_s: float = 0.0


def model_loss(model: nn.Module, batch: Rows, items: Any) -> torch.Tensor:
    """Loss computed by the model; items: number of labels to divide by, None for the batch's."""
    loss: torch.Tensor = model(**batch, num_items_in_batch=items)["loss"]
    return loss


class Loop:
    """Optimizer steps and evaluation of a model on one rank; the caller has sharded the model, if at all."""

    def __init__(self, model: nn.Module, knobs: Knobs, device: torch.device, loss: LossFunction = model_loss) -> None:
        self.model, self.knobs, self.device, self.loss = model, knobs, device, loss
        fused = True if device.type in FUSED_ON else None
        options: Any = {"weight_decay": knobs.weight_decay, "fused": fused}
        self.optimizer = torch.optim.AdamW(model.parameters(), knobs.learning_rate, **options)
        self.scaler = torch.amp.GradScaler(device.type, enabled=knobs.dtype == "fp16")
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1

    def step(self, batches: list[Rows], items: int, rate: float) -> torch.Tensor:
        """Run one optimizer step over the batches; return this rank's part of its loss, a tensor on the device.

        items: labels in all ranks' batches of the step. rate: factor of the learning rate.
        """
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            with fsdp.exchange(self.model, index == len(batches) - 1), self._autocast():
                loss = self.loss(self.model, batch, items)
                # Gradients are averaged over ranks, but the loss is already divided by the labels of all ranks.
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

    def _autocast(self) -> AbstractContextManager[Any]:
        return fsdp.autocast(self.model, self.device.type, self.knobs.dtype)

    @torch.no_grad()
    def evaluate(self, rows: Rows, rank: int) -> float:
        """Mean over rows of the mean loss of their batch, as Trainer computes it; a collective."""
        self.model.eval()
        labels = labels_of(rows)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for chosen in evaluation_batches(len(labels), rank, self.ranks, self.knobs.batch_size):
            held = [max(row, 0) for row in chosen]
            batch = take(rows, held, self.device)
            batch["labels"][[row < 0 for row in chosen]] = IGNORED
            kept = [row for row in chosen if row >= 0]
            with self._autocast():
                loss = self.loss(self.model, batch, max(1, sum(labels[row] for row in kept)))
            sums += torch.tensor([float(loss) * len(kept), len(kept)], dtype=torch.float64, device=self.device)
        if dist.is_initialized():
            dist.all_reduce(sums)
        self.model.train()
        return float(sums[0] / sums[1])


def take(rows: Rows, chosen: list[int], device: torch.device) -> Rows:
    """Select rows and move them to the device."""
    return {name: held[chosen].to(device, non_blocking=True) for name, held in rows.items()}


def labels_of(rows: Rows) -> list[int]:
    """Number of labels per row in the loss; excludes position 0, which no token predicts."""
    counts: list[int] = (rows["labels"][:, 1:] != IGNORED).sum(dim=1).tolist()
    return counts


def train(
    loop: Loop,
    rows: Rows,
    evaluation: Rows,
    rank: int,
    speed: SpeedMeter,
    utilisation: UtilisationMeter,
) -> Curve:
    """Train all epochs; losses are copied from the device at the end of each."""
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
            batches = [take(rows, batch, loop.device) for batch in chosen]
            speed.begin_step()
            waiting.append(loop.step(batches, items, linear_rate(done - 1, last)))
            speed.end_step()
            utilisation.sample()
            if done % knobs.logging_steps == 0:
                speed.log(done)
        speed.pause()
        curve.train_loss += summed(waiting)
        waiting.clear()
        before = time.perf_counter()
        curve.eval_loss.append(loop.evaluate(evaluation, rank))
        curve.evaluation_s += time.perf_counter() - before
    curve.runtime_s = time.perf_counter() - began
    return curve


def steps_per_epoch(knobs: Knobs, rows: int, world_size: int) -> int:
    """Optimizer steps per epoch, as Trainer counts them; the last may have fewer batches."""
    batches = -(-rows // (knobs.batch_size * world_size))
    return -(-batches // knobs.grad_acc)


def epoch_steps(knobs: Knobs, rows: int, epoch: int, rank: int, world_size: int) -> list[Step]:
    """Rows of one rank in every optimizer step of an epoch, shuffled by seed and epoch, equally on all ranks.

    Rows are dealt to the ranks batch by batch; the first rows fill up the last batches, as in Trainer's loader.
    """
    order = list(range(rows))
    random.Random(f"{knobs.seed} {epoch}").shuffle(order)
    wide = knobs.batch_size * world_size
    order += [order[i % rows] for i in range(-rows % wide)]
    mine = range(rank * knobs.batch_size, len(order), wide)
    own = [order[at : at + knobs.batch_size] for at in mine]
    return [own[at : at + knobs.grad_acc] for at in range(0, len(own), knobs.grad_acc)]


def evaluation_batches(rows: int, rank: int, world_size: int, batch_size: int) -> list[list[int]]:
    """Rows of one rank for evaluation, the same number of batches on each rank; -1 is padding."""
    wide = batch_size * world_size
    order = [*range(rows), *[-1] * (-rows % wide)]
    return [order[at : at + batch_size] for at in range(rank * batch_size, len(order), wide)]


def linear_rate(step: int, steps: int) -> float:
    """Factor of the learning rate in optimizer step `step` (from 0) of `steps`: linear to 0, without warm-up."""
    return max(0.0, (steps - step) / steps)


def _steps(knobs: Knobs, counts: list[int], epoch: int, rank: int, ranks: int) -> Iterator[tuple[Step, int]]:
    """Yield this rank's batches of each step, and the number of labels in all ranks' batches."""
    by_rank = [epoch_steps(knobs, len(counts), epoch, one, ranks) for one in range(ranks)]
    for own, *every in zip(by_rank[rank], *by_rank, strict=True):
        yield own, max(1, sum(counts[row] for batches in every for batch in batches for row in batch))


def summed(losses: list[torch.Tensor]) -> list[float]:
    """Sum the ranks' parts of each step's loss; a collective."""
    stacked = torch.stack(losses).double()
    if dist.is_initialized():
        dist.all_reduce(stacked)
    found: list[float] = stacked.tolist()
    return found
