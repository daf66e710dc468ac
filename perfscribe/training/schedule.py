"""Which rows each rank takes when, as transformers.Trainer hands them out, and the learning rate. No torch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from perfscribe.training.knobs import Knobs

Step = list[list[int]]  # of each accumulated batch the rows of one rank


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
    missing = -len(order) % wide
    order += [order[i % rows] for i in range(missing)]
    batches = [order[at : at + wide] for at in range(0, len(order), wide)]
    own = [batch[rank * knobs.batch_size : (rank + 1) * knobs.batch_size] for batch in batches]
    return [own[at : at + knobs.grad_acc] for at in range(0, len(own), knobs.grad_acc)]


def evaluation_batches(rows: int, rank: int, world_size: int, batch_size: int) -> list[list[int]]:
    """The rows of one rank to evaluate on, equally many batches on each; a row that fills up is -1."""
    wide = batch_size * world_size
    order = [*range(rows), *[-1] * (-rows % wide)]
    return [order[at + rank * batch_size : at + (rank + 1) * batch_size] for at in range(0, len(order), wide)]


def linear_rate(step: int, steps: int) -> float:
    """The share of the learning rate in optimizer step `step` (from 0) of `steps`: linear to 0, without warm-up."""
    return max(0.0, (steps - step) / steps)


def label_counts(counts: Sequence[int], step: Sequence[Sequence[int]]) -> int:
    """Labels in the batches of a step, of counts by row."""
    return sum(counts[row] for batch in step for row in batch)
