"""What each rank of a checkpoints cell does: train to the end and save on the way, or go on from what was saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.data import squad_sets
from perfscribe.training import bare_loop, checkpoints, dividing, on_ranks, schedule, trainer_checkpoints, wrapping
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

if TYPE_CHECKING:
    from torch import nn

    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.distributed.rank import Rank

BLOCKS = "BloomBlock"


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Losses of the steps made here and after them, seconds, and what lies on disk.

    arguments: factors, data_folder, dataset, folder of the checkpoints; resume: whether to go on from the last one.
    """
    factors, folder = arguments["factors"], Path(arguments["folder"])
    on_ranks.same_threads(rank.device)
    held = squad_sets.read(Path(arguments["data_folder"]), arguments["dataset"], factors["labels"])
    model = on_ranks.build(factors, rank.seed, rank.device)
    parameters = sum(p.numel() for p in model.parameters())
    by_trainer = factors["loop"] == on_ranks.TRAINER
    again = checkpoints.tied_elements(model) if by_trainer else 0  # Trainer writes a tied matrix under each name
    checkpoints.require_room(folder, parameters, factors["keep_checkpoints"], again)
    found = (_by_trainer if by_trainer else _by_loop)(arguments, rank, model, held)
    found["values"] |= {"parameters": parameters, "again_parameters": again}
    return found


def _by_trainer(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, data: TokenisedSet) -> dict[str, Any]:
    """Trainer writes and finds its own checkpoints."""
    factors, folder = arguments["factors"], Path(arguments["folder"])
    knobs = on_ranks.knobs_of(factors, arguments["order_seed"])
    limits = {"save_steps": factors["save_steps"], "keep": factors["keep_checkpoints"]}
    resume = arguments["resume"]
    found = trainer_checkpoints.train(model, data, knobs, folder, rank, BLOCKS, resume=resume, **limits)
    if not resume:
        (last,) = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))[-1:]
        found["values"]["checkpoint_bytes"] = checkpoints.size_bytes(last)
    return found


def _by_loop(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, held: TokenisedSet) -> dict[str, Any]:
    """The bare loop, which torch.distributed.checkpoint writes and reads."""
    factors, folder = arguments["factors"], Path(arguments["folder"])
    knobs = on_ranks.knobs_of(factors, arguments["order_seed"])
    dividing.shard(model, knobs.dtype)
    found = dividing.require(wrapping.FSDP2, model)
    loop = bare_loop.Loop(model, knobs, rank.device)
    values: dict[str, Any] = {"wrapped_by": found.wrapper, "local_share": found.local_share}
    behind = 0
    if arguments["resume"]:
        began = time.perf_counter()
        behind = checkpoints.load(loop, checkpoints.finished(folder)[-1][1])
        values["load_s"] = time.perf_counter() - began

    rows, evaluation = on_ranks.tensors(held.training), on_ranks.tensors(held.evaluation)
    steps = knobs.num_epochs * schedule.steps_per_epoch(knobs, len(rows["labels"]), rank.place.world_size)

    def after_step(done: int) -> None:
        if arguments["resume"] or done % factors["save_steps"] or done == steps:
            return  # behind the last step there is nothing to go on with
        began = time.perf_counter()
        path = checkpoints.save(loop, done, folder, factors["keep_checkpoints"])
        values.update(save_s=time.perf_counter() - began, checkpoint_bytes=checkpoints.size_bytes(path))

    meters = SpeedMeter(knobs.rows_a_step), UtilisationMeter(rank.device)
    curve = bare_loop.train(loop, rows, evaluation, rank.place.rank, *meters, behind, after_step)
    return {"values": values, "behind": behind, "train_loss": curve.train_loss, "eval_loss": curve.eval_loss}
