"""Programs of ranks in which accelerate takes gloo's processes for GPUs, so that Trainer's FSDP runs without one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any


def train_as_on_gpus(arguments: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """on_ranks.on_rank, but that accelerate is told of GPUs, whose memory is the CPU's."""
    from perfscribe.training import on_ranks

    _pretend(arguments)
    return on_ranks.on_rank(arguments, rank)


def checkpoint_as_on_gpus(arguments: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """The same of what a cell of checkpoints does."""
    from perfscribe.experiments.checkpoints import program

    _pretend(arguments)
    return program.on_rank(arguments, rank)


def _pretend(arguments: Mapping[str, Any]) -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    from accelerate import state
    from accelerate.utils import DistributedType

    from perfscribe.training import trainer

    state.PartialState._prepare_backend = lambda self, cpu=False, *_, **__: ("gloo", DistributedType.MULTI_GPU)
    made = trainer.arguments

    def arguments_of(knobs: Any, folder: Any, **more: Any) -> Any:
        on_gpu = dataclasses.replace(knobs, device="cuda", fp16=arguments["factors"].get("low", False))
        return made(on_gpu, folder, **more | {"use_cpu": False, "dataloader_pin_memory": False, "ddp_backend": "gloo"})

    trainer.arguments = arguments_of
