"""The workshop's models trained as fast as possible: fully_shard in bf16, compiled blocks, full memory.

Unchanged from the workshop: the model, AdamW with clipped gradients, the rows and their length.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from perfscribe.distributed import fsdp
from perfscribe.models import simple_gpt
from perfscribe.training import bare_loop
from perfscribe.training.bare_loop import IGNORED, Curve, Loop, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscribe.distributed.rank import Rank
    from perfscribe.training.on_ranks import Job

PROBES = (16, 32)  # batch sizes whose peak memory gives the bytes per row
ROUND = 16  # batch sizes are multiples of it
WARMUP_STEPS = 3
WITHOUT_A_GPU = 2  # rows per rank on a CPU


def prepare(model: nn.Module, dtype: str, compiled: bool) -> Callable[..., torch.Tensor]:
    """Compile each block and shard the model over the ranks, both in place; return the loss function of its logits.

    Blocks are compiled within the FSDP units, so that FSDP's hooks cause no graph breaks.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layers in lists if compiled else ():
        for index, layer in enumerate(layers):
            layers[index] = torch.compile(layer, dynamic=False)  # type: ignore[assignment]
    fsdp.shard(model, [layer for layers in lists for layer in layers], dtype, "fp32")
    return torch.compile(simple_gpt.next_token_loss, dynamic=False) if compiled else simple_gpt.next_token_loss


def train(job: Job, rows: Rows) -> tuple[Curve, dict[str, Any]]:
    """Find the batch size, compile, then time steps of one batch with the job's meters."""
    level, rank = job.level, job.rank
    loss_of = prepare(job.model, level.dtype, level.compiled)
    found = fsdp.require(fsdp.FSDP2, job.model)

    def loss(module: nn.Module, batch: Rows, items: Any) -> torch.Tensor:
        return loss_of(module(batch["input_ids"])["logits"], batch["labels"], items, True)

    began = time.perf_counter()
    loop = Loop(job.model, job.knobs, rank.device, loss)
    job.model.train()
    size = _fitting(loop, rows, rank, level.memory_percent)
    batch, items = _batch(rows, size, rank)
    for _ in range(WARMUP_STEPS):
        loop.step([batch], items, 1.0)
    preparing_s = time.perf_counter() - began
    job.speed.rows_per_step = size * rank.place.world_size
    runtime_s, losses = _timed(loop, batch, items, job)
    curve = Curve(losses, [], runtime_s)
    return curve, {
        "batch_found": size,
        "preparing_s": preparing_s,
        "train_runtime_s": runtime_s,
        "train_samples_per_second": job.speed.rows_per_step * len(losses) / runtime_s,
        "train_loss": sum(losses) / len(losses),
        "last_train_loss": losses[-1],
        **asdict(found),
    }


def _timed(loop: Loop, batch: Rows, items: int, job: Job) -> tuple[float, list[float]]:
    """Run all timed steps; return their total seconds and their losses."""
    began, losses = time.perf_counter(), []
    for step in range(job.level.steps):
        job.speed.begin_step()
        losses.append(loop.step([batch], items, 1.0))
        job.speed.end_step()
        job.utilisation.sample()
        job.speed.log(step + 1)
    runtime_s = time.perf_counter() - began
    return runtime_s, bare_loop.summed(losses)


def _fitting(loop: Loop, rows: Rows, rank: Rank, percent: float) -> int:
    """Largest batch whose peak is below this percentage of memory, extrapolated from the peaks of two small ones."""
    if rank.device.type != "cuda":
        return WITHOUT_A_GPU
    peaks = [_peak(loop, rows, size, rank) for size in PROBES]
    of_row = (peaks[1] - peaks[0]) / (PROBES[1] - PROBES[0])
    room = percent / 100 * torch.cuda.get_device_properties(rank.device).total_memory - peaks[0]
    size = torch.tensor(PROBES[0] + room / of_row, dtype=torch.float64, device=rank.device)
    dist.all_reduce(size, dist.ReduceOp.MIN)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(rank.device)
    return max(ROUND, int(size) // ROUND * ROUND)


def _peak(loop: Loop, rows: Rows, size: int, rank: Rank) -> int:
    """Peak allocated bytes in the second step with this batch: the first allocates AdamW's state."""
    batch, items = _batch(rows, size, rank)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(rank.device)
        loop.step([batch], items, 1.0)
    return int(torch.cuda.max_memory_allocated(rank.device))


def _batch(rows: Rows, size: int, rank: Rank) -> tuple[Rows, int]:
    """Make this rank's rows, repeating the set if necessary; return them with the number of labels on all ranks."""
    count = len(rows["labels"])
    first = rank.place.rank * size
    batch = bare_loop.take(rows, [(first + i) % count for i in range(size)], rank.device)
    labels = (batch["labels"][:, 1:] != IGNORED).sum()
    dist.all_reduce(labels)
    return batch, int(labels)
