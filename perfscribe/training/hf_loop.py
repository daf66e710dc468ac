"""The workshop's training by transformers.Trainer on ranks that have joined a process group already.

Trainer takes its place from the variables that every launch of ours sets, and accelerate joins the group that is there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

from perfscribe.training import dividing, trainer, wrapping
from perfscribe.training.bare_loop import Curve
from perfscribe.training.callbacks import TrainSpeedCallback, UtilisationCallback

if TYPE_CHECKING:
    from perfscribe.training.on_ranks import Job

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_IMPORTED = transformers.Trainer  # by itself it would be when first used, by each rank after it was forked


def distributed(wrap: str, blocks: str, backend: str) -> dict[str, Any]:
    """Trainer's arguments for several ranks; none for one that nothing divides.

    FSDP in the form that takes effect: version 2, and blocks by the bare name of their class. Checkpoints in parts: by
    default the first rank gathers the whole model and writes it twice, for resuming and as model.safetensors.
    """
    if wrap == wrapping.NONE:
        return {}
    settings = {"version": 2, "reshard_after_forward": True, "transformer_layer_cls_to_wrap": [blocks]}
    settings["state_dict_type"] = "SHARDED_STATE_DICT"
    own = {"fsdp": True, "fsdp_config": settings} if wrap == wrapping.FSDP2 else {}
    return {"ddp_backend": backend, **own}


def train(job: Job, blocks: str) -> tuple[Curve, dividing.Divided, dict[str, float]]:
    """What Trainer gave; what divided the model, read off it; its own metrics by its own names.

    blocks: class of the model's blocks. RuntimeError where something else divides the model than was asked for.
    """
    wrap = job.factors["wrap"]
    if wrap == wrapping.NONE:
        for name in PLACE:  # with them Trainer wraps a model by DDP on one rank, too
            os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer.make(
            job.model,
            job.data,
            job.knobs,
            Path(folder),
            [UtilisationCallback(job.utilisation), TrainSpeedCallback(job.speed)],
            prediction_loss_only=True,  # the logits of a row are as large as the embedding
            **distributed(wrap, blocks, job.rank.backend),
        )
        metrics = dict(made.train().metrics)
    found = dividing.require(wrap, made.model_wrapped)
    curve = Curve(runtime_s=float(metrics["train_runtime"]))
    for log in made.state.log_history:
        if "loss" in log:
            curve.train_loss.append(float(log["loss"]))
        if "eval_loss" in log:
            curve.eval_loss.append(float(log["eval_loss"]))
    return curve, found, {name: float(value) for name, value in metrics.items()}
