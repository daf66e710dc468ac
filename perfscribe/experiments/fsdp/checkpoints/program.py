"""Runs on each rank of a checkpoints cell: train to the end and save on the way, or resume.

By the bare loop each rank writes its part with torch.distributed.checkpoint under a temporary name, renamed when all
are done, so that an existing checkpoint is complete; any number of ranks can read it. (Its metadata file is a pickle of
torch's: only read what this program has written.) Trainer writes and finds its own checkpoints.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers import Trainer, TrainerCallback

from perfscribe.base.cells import read
from perfscribe.data import squad_sets
from perfscribe.distributed import fsdp
from perfscribe.experiments.fsdp.checkpoints.measure import TRAINER, Checkpoints, needed_bytes
from perfscribe.training import bare_loop, on_ranks, trainer
from perfscribe.training.bare_loop import Loop
from perfscribe.training.launching import Training, shape_of
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

if TYPE_CHECKING:
    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.distributed.rank import Rank

GIB = 2**30


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return losses of the steps run here and the evaluation after them, seconds, and sizes on disk.

    arguments: factors, data_folder, dataset, folder of the checkpoints; resume: whether to start from the last one.
    """
    factors, folder = arguments["factors"], Path(arguments["folder"])
    of, level = read(factors, Training), read(factors, Checkpoints)
    on_ranks.same_threads(rank.device)
    held = squad_sets.read(Path(arguments["data_folder"]), arguments["dataset"], of.labels)
    model = on_ranks.build(of, shape_of(factors), rank.seed, rank.device)
    parameters = sum(p.numel() for p in model.parameters())
    by_trainer = level.loop == TRAINER
    # Trainer writes a tied matrix under each of its names.
    again = sum(model.get_parameter(name).numel() for name in tied_names(model)) if by_trainer else 0
    require_room(folder, parameters, level.keep_checkpoints, again)
    found = (_by_trainer if by_trainer else _by_loop)(arguments, rank, model, held)
    found["values"] |= {"parameters": parameters, "again_parameters": again}
    return found


def require_room(folder: Path, parameters: int, keep: int, written_again: int) -> None:
    """Raise ValueError (one line) before training if the disk has less room than keep_checkpoints needs."""
    needed, free = needed_bytes(parameters, keep, written_again), shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"keep_checkpoints: {keep}: they and the one being written take {needed / GIB:.2f} GiB, "
            f"{free / GIB:.2f} GiB are free"
        )


def finished(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Return checkpoints named name-STEP with their optimizer step, in order of steps."""
    found = ((re.fullmatch(rf"{name}-(\d+)", path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def size_bytes(path: Path) -> int:
    """Return the bytes of all files of a checkpoint."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return additional names of parameters that have several, each with the parameter's first name."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    found = {name: first.setdefault(id(parameter), name) for name, parameter in named}
    return {name: one for name, one in found.items() if name != one}


# --- the bare loop ----------------------------------------------------------------------------------------------


def _by_loop(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, held: TokenisedSet) -> dict[str, Any]:
    level, folder = read(arguments["factors"], Checkpoints), Path(arguments["folder"])
    knobs = on_ranks.knobs_of(arguments["factors"], arguments["order_seed"])
    fsdp.shard(model, fsdp.blocks_of(model), knobs.dtype, knobs.dtype)
    found = fsdp.require(fsdp.FSDP2, model)
    loop = Loop(model, knobs, rank.device)
    values: dict[str, Any] = {"wrapped_by": found.wrapped_by, "local_share": found.local_share}
    behind = 0
    if arguments["resume"]:
        began = time.perf_counter()
        behind = load(loop, finished(folder, "step")[-1][1])
        values["load_s"] = time.perf_counter() - began

    rows, evaluation = on_ranks.tensors(held.training), on_ranks.tensors(held.evaluation)
    steps = knobs.num_epochs * bare_loop.steps_per_epoch(knobs, len(rows["labels"]), rank.place.world_size)

    def after_step(done: int) -> None:
        if arguments["resume"] or done % level.save_steps or done == steps:
            return  # after the last step there is nothing to resume
        began = time.perf_counter()
        path = save(loop, done, folder, level.keep_checkpoints)
        values.update(save_s=time.perf_counter() - began, checkpoint_bytes=size_bytes(path))

    meters = SpeedMeter(knobs.rows_a_step), UtilisationMeter(rank.device)
    curve = bare_loop.train(loop, rows, evaluation, rank.place.rank, *meters, behind, after_step)
    return {"values": values, "behind": behind, "train_loss": curve.train_loss, "eval_loss": curve.eval_loss}


def save(loop: Loop, done: int, folder: Path, keep: int) -> Path:
    """Write the state after `done` optimizer steps and keep only the last `keep` checkpoints; a collective."""
    whole, part = folder / f"step-{done}", folder / f"step-{done}.part"
    state_dict_saver.save(_state(loop, done), checkpoint_id=part)
    if dist.get_rank() == 0:
        part.rename(whole)
        for _, old in finished(folder, "step")[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return whole


def load(loop: Loop, path: Path) -> int:
    """Load a checkpoint written by any number of ranks; return the optimizer steps completed before it."""
    state = _state(loop, 0)
    state_dict_loader.load(state, checkpoint_id=path)
    weights = state["model"]
    weights |= {again: weights[first] for again, first in tied_names(loop.model).items()}
    set_state_dict(loop.model, loop.optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"])
    if loop.scaler.is_enabled():
        kept = loop.scaler.state_dict()
        loop.scaler.load_state_dict(kept | {"scale": float(state["scale"])})
    return int(state["done"])


def _state(loop: Loop, done: int) -> dict[str, Any]:
    model, optimizer = get_state_dict(loop.model, loop.optimizer)
    for again in tied_names(loop.model):  # torch.distributed.checkpoint would write the tensor once per name
        del model[again]
    scale = torch.tensor(loop.scaler.get_scale(), dtype=torch.float64)
    return {"model": model, "optimizer": optimizer, "done": torch.tensor(done), "scale": scale}


# --- Trainer ----------------------------------------------------------------------------------------------------


class TimedTrainer(Trainer):
    """Trainer that records the time to write its last checkpoint and to read the one it resumed from (s)."""

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


class NotAtTheEnd(TrainerCallback):  # type: ignore[misc]
    """Prevents Trainer from saving after the last step, where there is nothing to resume."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cancel the checkpoint that Trainer's own callback, called before, has requested."""
        if state.global_step >= state.max_steps:
            control.should_save = False


def _by_trainer(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, data: TokenisedSet) -> dict[str, Any]:
    """Train by Trainer; RuntimeError if it does not divide the model."""
    level, folder, resume = read(arguments["factors"], Checkpoints), Path(arguments["folder"]), arguments["resume"]
    knobs = on_ranks.knobs_of(arguments["factors"], arguments["order_seed"])
    behind, path = finished(folder, "checkpoint")[-1] if resume else (0, None)
    made: Any = trainer.make(
        model,
        data,
        knobs,
        folder,
        NotAtTheEnd(),
        TimedTrainer,
        save_strategy="steps",
        save_steps=level.save_steps,
        save_total_limit=level.keep_checkpoints,
        prediction_loss_only=True,
        **trainer.distributed(fsdp.FSDP2, model, rank.backend),
    )
    made.train(resume_from_checkpoint=str(path) if path else None)
    found = fsdp.require(fsdp.FSDP2, made.model_wrapped)
    values: dict[str, Any] = {"wrapped_by": found.wrapped_by, "local_share": found.local_share}
    if resume:
        values["load_s"] = made.load_s
    else:
        values |= {"save_s": made.save_s, "checkpoint_bytes": size_bytes(finished(folder, "checkpoint")[-1][1])}
    train_loss, eval_loss = trainer.losses([entry for entry in made.state.log_history if entry["step"] > behind])
    return {"values": values, "behind": behind, "train_loss": train_loss, "eval_loss": eval_loss}
