"""Trainer's own checkpoints of a model that FSDP divides: written in parts by all ranks, read by any number of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import Trainer, TrainerCallback

from perfscribe.training import dividing, hf_loop, keeping, trainer, wrapping

if TYPE_CHECKING:
    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.distributed.rank import Rank
    from perfscribe.training.knobs import Knobs


class TimedTrainer(Trainer):
    """A Trainer that keeps how long its last checkpoint took to write, and the one that it went on from to read."""

    save_s = load_s = 0.0

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        super()._save_checkpoint(*arguments, **named)
        self.save_s = time.perf_counter() - began

    def _load_from_checkpoint(self, *arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        super()._load_from_checkpoint(*arguments, **named)
        self.load_s += time.perf_counter() - began

    def _load_optimizer_and_scheduler(self, *arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        super()._load_optimizer_and_scheduler(*arguments, **named)
        self.load_s += time.perf_counter() - began


class NotAtTheEnd(TrainerCallback):
    """Lets Trainer save on the way alone: behind the last step there is nothing to go on with."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called behind Trainer's own callback, which asks for a checkpoint then."""
        if state.global_step >= state.max_steps:
            control.should_save = False


def train(
    model: nn.Module,
    data: TokenisedSet,
    knobs: Knobs,
    folder: Path,
    rank: Rank,
    blocks: str,
    resume: bool,
    save_steps: int,
    keep: int,
) -> dict[str, Any]:
    """Train to the end, saving every so many steps, or from the last whole checkpoint in the folder on.

    blocks: class of the model's blocks. Gives values (seconds, wrapper, size), behind: the optimizer steps behind the
    checkpoint, and losses: of each step made here, and of evaluations. RuntimeError where Trainer does not divide.
    """
    behind, path = keeping.last_whole(folder) or (0, None) if resume else (0, None)
    more = {"save_steps": save_steps, "save_total_limit": keep, "prediction_loss_only": True}
    made = TimedTrainer(
        model=model,
        args=trainer.arguments(
            knobs, folder, save_strategy="steps", **more, **hf_loop.distributed(wrapping.FSDP2, blocks, rank.backend)
        ),
        train_dataset=trainer.Rows(data.training),
        eval_dataset=trainer.Rows(data.evaluation),
        callbacks=[NotAtTheEnd()],
    )
    made.train(resume_from_checkpoint=str(path) if path else None)
    found = dividing.require(wrapping.FSDP2, made.model_wrapped)
    log = [entry for entry in made.state.log_history if entry["step"] > behind]
    return {
        "values": {
            "wrapped_by": found.wrapper,
            "local_share": found.local_share,
            **({"load_s": made.load_s} if resume else {"save_s": made.save_s}),
        },
        "behind": behind,
        "train_loss": [float(entry["loss"]) for entry in log if "loss" in entry],
        "eval_loss": [float(entry["eval_loss"]) for entry in log if "eval_loss" in entry],
    }
