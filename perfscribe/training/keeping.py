"""Trainer's checkpoints of any model, the last whole one, and what is kept of a training: its model and tokenizer.

Trainer writes a model that is not transformers' own with all names of its state; safetensors refuses two names of one
tensor, so that a tied model could not be saved. Its own save_model and load_model take such models.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainerCallback

from perfscribe.data import own_tokenizer
from perfscribe.models.simple_gpt import SimpleGPTModel

WEIGHTS, SHAPE = "model.safetensors", "shape.json"
STATE = "trainer_state.json"
NAME = re.compile(r"checkpoint-(\d+)")


class KeepingTrainer(Trainer):
    """A Trainer whose checkpoints hold, and go on with, models with tied weights that are not transformers' own."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if isinstance(self.model, PreTrainedModel):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            write_model(self._own_model(), Path(str(output_dir or self.args.output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if isinstance(self.model, PreTrainedModel):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            read_model(self._own_model(), Path(resume_from_checkpoint))

    def _own_model(self) -> nn.Module:
        model: Any = self.model  # never None: it is given when a Trainer is made here
        own: nn.Module = model
        return own


class Killed(TrainerCallback):
    """Ends its own process by SIGKILL after an optimizer step, as a scheduler or a crash would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """With the step done and nothing written since."""
        if state.global_step == self.after:
            kill()


def kill() -> None:
    """End this process as `kill -9` does: nothing is flushed, nothing cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def last_whole(folder: Path) -> tuple[int, Path] | None:
    """Trainer's last whole checkpoint and its optimizer steps; None where there is none.

    Trainer writes its state last: a checkpoint without it, or with half of it, was being written when training died.
    """
    found = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    whole = [(int(match[1]), path) for match, path in found if match and _is_whole(path)]
    return max(whole, default=None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        return isinstance(json.loads((checkpoint / STATE).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def write_model(model: nn.Module, folder: Path) -> None:
    """Weights as safetensors, and what the model is built from: transformers' config.json, or a SimpleGPT's shape."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, PreTrainedModel):
        model.save_pretrained(folder)
        return
    safetensors.torch.save_model(model, str(folder / WEIGHTS), metadata={"format": "pt"})
    if isinstance(model, SimpleGPTModel):
        (folder / SHAPE).write_text(json.dumps(asdict(model.shape), indent=1) + "\n", encoding="utf-8")


def write_tokenizer(text: str, folder: Path) -> None:
    """The tokenizer of a data set (the text of its tokenizer.json) in transformers' own form."""
    made = PreTrainedTokenizerFast(tokenizer_object=own_tokenizer.from_text(text), **own_tokenizer.SPECIAL)
    made.save_pretrained(folder)


def read_model(model: nn.Module, folder: Path) -> None:
    """Take the weights of a folder over into a model of the same shape; RuntimeError where they do not fit."""
    if isinstance(model, PreTrainedModel):
        model.load_state_dict(type(model).from_pretrained(folder).state_dict())
    else:
        safetensors.torch.load_model(model, folder / WEIGHTS)
