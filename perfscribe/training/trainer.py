"""transformers.Trainer with the workshop's parameters and callbacks, on one rank or in an existing process group.

With several ranks Trainer reads its rank from the variables that our launches set, and accelerate joins the group.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from perfscribe.distributed import fsdp
from perfscribe.instruments.timing import synchronise
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
    """Trainer that can also save the workshop's model, whose shared weights safetensors refuses.

    evaluation_s, checkpoints_s: seconds of the whole training in each, on this rank, without work queued before.
    """

    evaluation_s = checkpoints_s = 0.0

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Evaluate as Trainer does, and add the time."""
        synchronise(self.args.device)
        began = perf_counter()
        metrics: dict[str, float] = super().evaluate(*arguments, **named)
        self.evaluation_s += perf_counter() - began
        return metrics

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        synchronise(self.args.device)
        began = perf_counter()
        super()._save_checkpoint(*arguments, **named)
        self.checkpoints_s += perf_counter() - began

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        if self.model is not None and not isinstance(self.model, PreTrainedModel):
            state_dict = {name: one.clone() for name, one in (state_dict or self.model.state_dict()).items()}
        super()._save(output_dir, state_dict)


def arguments(knobs: Knobs, output_dir: Path, **more: Any) -> TrainingArguments:
    """Make Trainer's arguments; `more`: further ones (fsdp, fsdp_config, …).

    Restricts a single process to one GPU: with several, Trainer would use DataParallel.
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
        "logging_nan_inf_filter": False,  # keep losses that are not finite
        "seed": knobs.seed,
        "use_cpu": knobs.device == "cpu",
        "dataloader_pin_memory": knobs.device == "cuda",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if knobs.gradient_checkpointing:  # set only if on: later versions call it activation_checkpointing
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
    """Make a Trainer that is ready to train; it moves the model to its device. `more`: see arguments()."""
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
    """Trainer's arguments for several ranks; empty if the model is not wrapped.

    FSDP1 with the workshop's effective settings: the whole model is one unit, and the first rank writes checkpoints,
    the whole model twice, for resuming and as model.safetensors. FSDP2: blocks by class name, sharded checkpoints.
    """
    if wrap == fsdp.NONE:
        return {}
    if wrap == fsdp.FSDP1:
        prefetch = {"forward_prefetch": True, "backward_prefetch": "backward_post"}
        given = {"version": 1, "reshard_after_forward": "full_shard", "auto_wrap_policy": "NO_WRAP", **prefetch}
        # Newer versions default to fused AdamW, which breaks with the scaler that FSDP1 needs for fp16 (torch 2.13).
        return {"ddp_backend": backend, "fsdp": True, "fsdp_config": given, "optim": "adamw_torch"}
    block = type(fsdp.blocks_of(model)[0]).__name__
    settings = {"version": 2, "reshard_after_forward": True, "transformer_layer_cls_to_wrap": [block]}
    settings["state_dict_type"] = "SHARDED_STATE_DICT"
    own = {"fsdp": True, "fsdp_config": settings} if wrap == fsdp.FSDP2 else {}
    return {"ddp_backend": backend, **own}


class Meters(TrainerCallback):  # type: ignore[misc]
    """The FSDP workshop's two callbacks: passes Trainer's steps and logs to both meters."""

    def __init__(self, speed: SpeedMeter, utilisation: UtilisationMeter) -> None:
        self.speed, self.utilisation = speed, utilisation

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock before a step's first batch."""
        self.speed.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sample memory at rest; Trainer's callback, which runs first, has decided whether to evaluate or save."""
        self.utilisation.sample()
        self.speed.end_step()
        if control.should_evaluate or control.should_save:
            self.speed.pause()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock: evaluation, checkpoint and the next epoch's loader follow."""
        self.speed.pause()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Log training steps; logs of an evaluation have no training loss."""
        if logs and "loss" in logs:
            self.speed.log(state.global_step)


def train(job: Job) -> tuple[Curve, fsdp.Sharded, dict[str, float]]:
    """Train with Trainer; return the curve, the wrapping detected on the model, and Trainer's metrics.

    RuntimeError if the wrapping is not the one asked for.
    """
    wrap = job.level.wrap
    if wrap == fsdp.NONE:
        for name in PLACE:  # otherwise Trainer wraps a model by DDP even on one rank
            os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        made: Any = make(
            job.model,
            job.data,
            job.knobs,
            Path(folder),
            Meters(job.speed, job.utilisation),
            prediction_loss_only=True,  # one row's logits are as large as the embedding
            **distributed(wrap, job.model, job.rank.backend),
        )
        metrics = dict(made.train().metrics)
    found = fsdp.require(wrap, made.model_wrapped)
    log = made.state.log_history
    curve = Curve(*losses(log), float(metrics["train_runtime"]), made.evaluation_s, made.checkpoints_s)
    return curve, found, {name: float(value) for name, value in metrics.items()}


def losses(log: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Training and evaluation losses in Trainer's log."""
    train, evaluation = ([float(entry[name]) for entry in log if name in entry] for name in ("loss", "eval_loss"))
    return train, evaluation
