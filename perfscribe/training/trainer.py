"""A Hugging Face Trainer made of the workshop's knobs and a tokenised data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from perfscribe.training.knobs import Knobs

if TYPE_CHECKING:
    import numpy as np
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perfscribe.data.squad_sets import TokenisedSet


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of arrays of shape (rows, length) under Trainer's names, as int64 tensors of shape (length,)."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: tensor[index] for name, tensor in self.tensors.items()}


def check_vocabulary(data: TokenisedSet, vocab_size: int) -> None:
    """ValueError where the tokenizer has ids that the model does not know."""
    reached = data.facts["tokenizer"]["vocabulary_reached"]
    if reached > vocab_size:
        raise ValueError(f"vocab_size: the tokenizer has {reached} entries, the model {vocab_size}")


def arguments(knobs: Knobs, output_dir: Path, **more: Any) -> TrainingArguments:
    """Trainer's arguments; `more` are further ones of its own (fsdp, fsdp_config, torch_compile, run_name, …).

    Reports to no tracker unless report_to is among them. A single process keeps to one GPU: Trainer would take
    DataParallel where it sees several.
    """
    from transformers import TrainingArguments

    given: dict[str, Any] = {
        "output_dir": str(output_dir),
        "num_train_epochs": knobs.num_epochs,
        "max_steps": knobs.max_steps,
        "per_device_train_batch_size": knobs.batch_size,
        "per_device_eval_batch_size": knobs.batch_size,
        "gradient_accumulation_steps": knobs.grad_acc,
        "learning_rate": knobs.learning_rate,
        "weight_decay": knobs.weight_decay,
        "fp16": knobs.fp16,
        "bf16": knobs.bf16,
        "eval_strategy": knobs.eval_strategy,
        "save_strategy": knobs.save_strategy,
        "logging_steps": knobs.logging_steps,
        "logging_nan_inf_filter": False,  # a loss that is no number is to be seen
        "seed": knobs.seed,
        "use_cpu": knobs.device == "cpu",
        "dataloader_pin_memory": knobs.device == "cuda",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if knobs.gradient_checkpointing:  # named only where it is on: later versions call it activation_checkpointing
        given |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    made = TrainingArguments(**given | more)
    if made.n_gpu > 1:
        made._n_gpu = 1
    return made


def make(
    model: nn.Module,
    data: TokenisedSet,
    knobs: Knobs,
    output_dir: Path,
    callbacks: Sequence[TrainerCallback] = (),
    **more: Any,
) -> Trainer:
    """A Trainer that is ready to train; it moves the model to its device. `more`: see arguments()."""
    from transformers import PrinterCallback, Trainer

    made = Trainer(
        model=model,
        args=arguments(knobs, output_dir, **more),
        train_dataset=Rows(data.training),
        eval_dataset=Rows(data.evaluation),
        callbacks=list(callbacks),
    )
    made.remove_callback(PrinterCallback)
    return made
