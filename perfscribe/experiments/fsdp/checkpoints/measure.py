"""Measures a training that some ranks save in parts and others resume.

A cell trains to the end with the first number of ranks and saves on the way; then the second number of ranks resumes
from the last checkpoint before the end, and its losses are compared with those of the first from there on. By the bare
loop, and by Trainer, which divides a model only on GPUs.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.distributed import needs
from perfscribe.training import launching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MODULE = "perfscribe.experiments.fsdp.checkpoints.program"  # imports Trainer
PRELOADED = (*needs.PRELOADED, MODULE)
TRAINER, BARE = "trainer", "bare loop"
ON_A_CPU = "Trainer divides a model on GPUs alone: on a CPU it takes DDP"
WEIGHT_BYTES = 4  # of a parameter, which is kept in fp32
STATE_BYTES = 3 * WEIGHT_BYTES  # of a parameter: its weight and AdamW's two moments
# Room for the rest of a checkpoint, an upper estimate: header of each tensor's part on each rank, index of all parts,
# random states, scheduler.
PIECES_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Checkpoints:
    """Factors of a cell next to those of any training."""

    device: str
    loop: str
    backend: str
    saved_by: int
    resumed_by: int
    rows_per_step: int
    batch_size: int
    save_steps: int
    keep_checkpoints: int


def predicted_bytes(parameters: int, written_again: int = 0) -> int:
    """Return bytes of a checkpoint's tensors; written_again: elements of tied matrices stored under a second name."""
    return STATE_BYTES * parameters + WEIGHT_BYTES * written_again


def needed_bytes(parameters: int, keep: int, written_again: int = 0) -> int:
    """Return the most bytes on disk of `keep` checkpoints and the one being written."""
    return (predicted_bytes(parameters, written_again) + PIECES_BYTES) * (keep + 1)


def run(cell: Cell) -> Measurement:
    """Train and save, then resume with other ranks. Raises Unsupported for Trainer without GPUs."""
    from perfscribe.experiments.fsdp.checkpoints.program import on_rank

    level = cell.read(Checkpoints)
    if level.loop == TRAINER and level.device == "cpu":
        raise Unsupported(ON_A_CPU)
    return both(cell, on_rank)


def both(cell: Cell, on_rank: Callable[..., Any]) -> Measurement:
    """Run the training that saves and the one that resumes, with this program on each rank."""
    from perfscribe.distributed.launch import launch

    level, seed = cell.read(Checkpoints), random.getrandbits(31)  # derived from the cell's seed
    with tempfile.TemporaryDirectory() as folder:
        common = {"data_folder": cell.data_folder, "dataset": cell.data[0], "folder": folder, "order_seed": seed}
        results = []
        for ranks, resume in ((level.saved_by, False), (level.resumed_by, True)):
            factors = {**cell.factors, "grad_acc": level.rows_per_step // ranks // level.batch_size}
            said = launch(
                on_rank,
                {**common, "factors": factors, "resume": resume},
                world_size=ranks,
                timeout_s=launching.LAUNCH_TIMEOUT_S / 2,
                backend=level.backend,
                seed=seed,
            )
            results.append(said)
    return combine(*results)


def combine(saved: Sequence[Mapping[str, Any]], resumed: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine the slowest rank's seconds, both trainings' losses from the checkpoint on, and their difference."""
    first, second = saved[0], resumed[0]
    behind, whole, rest = second["behind"], first["train_loss"], second["train_loss"]
    compared = list(zip(whole[behind:], rest, strict=True))
    end, resumed_end = first["eval_loss"][-1], second["eval_loss"][-1]
    values = {
        **first["values"],
        **second["values"],
        "save_s": max(rank["values"]["save_s"] for rank in saved),
        "load_s": max(rank["values"]["load_s"] for rank in resumed),
        "steps_behind": behind,
        "steps_compared": len(compared),
        "largest_difference": max(_apart(*pair) for pair in compared),
        "eval_loss": end,
        "resumed_eval_loss": resumed_end,
    }
    return Measurement(values=values, series={"train_loss": list(whole), "resumed_train_loss": list(rest)})


def _apart(loss: float, other: float) -> float:
    return abs(loss - other) / abs(loss)
