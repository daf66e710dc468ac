"""transformers.Trainer with the workshop's knobs and callbacks, alone or on ranks that have joined a process group.

On ranks Trainer takes its place from the variables that every launch of ours sets, and accelerate joins the group that
is there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from perfscribe.training import dividing
from perfscribe.training.bare_loop import Curve
from perfscribe.training.knobs import Knobs

if TYPE_CHECKING:
    import numpy as np

    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.training.meters import SpeedMeter, UtilisationMeter
    from perfscribe.training.on_ranks import Job

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of arrays of shape (rows, length) under Trainer's names, as int64 tensors of shape (length,)."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: tensor[index] for name, tensor in self.tensors.items()}


class SavingTrainer(Trainer):  # type: ignore[misc]
    """Trainer that saves the workshop's own model, too: safetensors refuses weights that are one tensor."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        if self.model is not None and not isinstance(self.model, PreTrainedModel):
            state_dict = {name: one.clone() for name, one in (state_dict or self.model.state_dict()).items()}
        super()._save(output_dir, state_dict)


def arguments(knobs: Knobs, output_dir: Path, **more: Any) -> TrainingArguments:
    """Trainer's arguments; `more` are further ones of its own (fsdp, fsdp_config, …).

    A single process keeps to one GPU: Trainer would take DataParallel where it sees several.
    """
    given: dict[str, Any] = {
        "output_dir": str(output_dir),
        "num_train_epochs": knobs.num_epochs,
        "per_device_train_batch_size": knobs.batch_size,
        "per_device_eval_batch_size": knobs.batch_size,
        "gradient_accumulation_steps": knobs.grad_acc,
        "learning_rate": knobs.learning_rate,
        "weight_decay": knobs.weight_decay,
        "fp16": knobs.fp16,
        "bf16": knobs.bf16,
        "eval_strategy": knobs.eval_strategy,
        "save_strategy": knobs.save_strategy,
        "save_total_limit": 1,
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
    callback: TrainerCallback,
    kind: type[Trainer] = SavingTrainer,
    **more: Any,
) -> Trainer:
    """A Trainer that is ready to train; it moves the model to its device. `more`: see arguments()."""
    made = kind(
        model=model,
        args=arguments(knobs, output_dir, **more),
        train_dataset=Rows(data.training),
        eval_dataset=Rows(data.evaluation),
        callbacks=[callback],
    )
    made.remove_callback(PrinterCallback)
    return made


def distributed(wrap: str, model: nn.Module, backend: str) -> dict[str, Any]:
    """Trainer's arguments for several ranks; none for one that nothing divides.

    FSDP1 as the workshop's settings took effect: the whole model is one unit, and the first rank writes checkpoints,
    the whole model twice, for resuming and as model.safetensors. FSDP2: blocks by the bare name of their class,
    checkpoints in parts.
    """
    if wrap == dividing.NONE:
        return {}
    if wrap == dividing.FSDP1:
        prefetch = {"forward_prefetch": True, "backward_prefetch": "backward_post"}
        given = {"version": 1, "reshard_after_forward": "full_shard", "auto_wrap_policy": "NO_WRAP", **prefetch}
        # Newer versions take a fused AdamW, which the scaler that FSDP1 needs for fp16 breaks (torch 2.13).
        return {"ddp_backend": backend, "fsdp": True, "fsdp_config": given, "optim": "adamw_torch"}
    block = type(next(dividing.blocks(model))).__name__
    settings = {"version": 2, "reshard_after_forward": True, "transformer_layer_cls_to_wrap": [block]}
    settings["state_dict_type"] = "SHARDED_STATE_DICT"
    own = {"fsdp": True, "fsdp_config": settings} if wrap == dividing.FSDP2 else {}
    return {"ddp_backend": backend, **own}


class Meters(TrainerCallback):  # type: ignore[misc]
    """The FSDP workshop's two callbacks: tells both meters of Trainer's steps and logs."""

    def __init__(self, speed: SpeedMeter, utilisation: UtilisationMeter) -> None:
        self.speed, self.utilisation = speed, utilisation

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first of a step's batches is about to be trained on."""
        self.speed.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over, memory at rest; Trainer's own callback, the first, has decided what follows."""
        self.utilisation.sample()
        self.speed.end_step()
        if control.should_evaluate or control.should_save:
            self.speed.pause()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation and checkpoint of an epoch follow, and the next epoch's loader starts."""
        self.speed.pause()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Training steps are logged; the logs of an evaluation hold no loss of training."""
        if logs and "loss" in logs:
            self.speed.log(state.global_step)


def train(job: Job) -> tuple[Curve, dividing.Divided, dict[str, float]]:
    """What Trainer gave; what divided the model, read off it; its own metrics by its own names.

    RuntimeError where something else divides the model than was asked for.
    """
    wrap = job.factors["wrap"]
    if wrap == dividing.NONE:
        for name in PLACE:  # with them Trainer wraps a model by DDP on one rank, too
            os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        made = make(
            job.model,
            job.data,
            job.knobs,
            Path(folder),
            Meters(job.speed, job.utilisation),
            prediction_loss_only=True,  # the logits of a row are as large as the embedding
            **distributed(wrap, job.model, job.rank.backend),
        )
        metrics = dict(made.train().metrics)
    found = dividing.require(wrap, made.model_wrapped)
    log = made.state.log_history
    curve = Curve(*losses(log), runtime_s=float(metrics["train_runtime"]))
    return curve, found, {name: float(value) for name, value in metrics.items()}


def losses(log: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Of Trainer's log the losses of training and of evaluations."""
    train, evaluation = ([float(entry[name]) for entry in log if name in entry] for name in ("loss", "eval_loss"))
    return train, evaluation
