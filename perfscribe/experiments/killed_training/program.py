"""What each rank of a killed_training cell does: train and save on the way, be killed, or go on and keep the model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import BloomForCausalLM

from perfscribe.data import own_tokenizer, squad_sets
from perfscribe.training import bare_loop, checkpoints, dividing, hf_loop, keeping, on_ranks, trainer, wrapping
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

if TYPE_CHECKING:
    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.parallel.rank import Rank

_IMPORTED = BloomForCausalLM  # before ranks are forked, not by each of them
FINAL = "final"
TRAINER = "trainer"
ANOTHER_SEED = 1  # of the weights that those read back take the place of


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Losses of the steps made here, and what lies on disk.

    arguments: factors, data_folder, dataset, folder of the checkpoints; killed_after: optimizer steps before the end by
    SIGKILL, 0 for none; resume: whether to go on from the last checkpoint, and to keep the model in folder/final.
    """
    factors, folder = arguments["factors"], Path(arguments["folder"])
    on_ranks.same_threads(rank.device)
    held = squad_sets.read(Path(arguments["data_folder"]), arguments["dataset"], factors["labels"])
    model: Any = on_ranks.build(factors, rank.seed, rank.device)
    parameters = sum(p.numel() for p in model.parameters())
    checkpoints.require_room(folder, parameters, factors["keep_checkpoints"])
    free = shutil.disk_usage(folder).free
    train = _by_trainer if factors["loop"] == TRAINER else _by_loop
    found = train(arguments, rank, model, held)
    found["values"] |= {"parameters": parameters, "free_bytes": free}
    return found


def _by_trainer(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, data: TokenisedSet) -> dict[str, Any]:
    """By Trainer on one rank, which writes and finds its own checkpoints."""
    factors, folder = arguments["factors"], Path(arguments["folder"])
    for name in hf_loop.PLACE:  # with them Trainer wraps a model by DDP on one rank, too
        os.environ.pop(name, None)
    knobs = replace(on_ranks.knobs_of(factors, arguments["order_seed"]), save_strategy="steps")
    limits = {"save_steps": factors["save_steps"], "save_total_limit": factors["keep_checkpoints"]}
    made = keeping.KeepingTrainer(
        model=model,
        args=trainer.arguments(knobs, folder, prediction_loss_only=True, **limits),
        train_dataset=trainer.Rows(data.training),
        eval_dataset=trainer.Rows(data.evaluation),
        callbacks=[keeping.Killed(arguments["killed_after"])],
    )
    last = keeping.last_whole(folder) if arguments["resume"] else None
    behind, path = last or (0, None)
    values = {"checkpoint_bytes": checkpoints.size_bytes(path)} if path else {}
    made.train(resume_from_checkpoint=str(path) if path else None)
    log = made.state.log_history
    if arguments["resume"]:
        values |= _keep(made.model, data, factors, folder / FINAL)
    losses = [entry["loss"] for entry in log if "loss" in entry and entry["step"] > behind]
    evaluated = [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    return {"values": values | {"wrapped_by": "none"}, "behind": behind, "train_loss": losses, "eval_loss": evaluated}


def _by_loop(arguments: Mapping[str, Any], rank: Rank, model: nn.Module, data: TokenisedSet) -> dict[str, Any]:
    """By the bare loop, divided by FSDP, each rank writing its part."""
    factors, folder = arguments["factors"], Path(arguments["folder"])
    knobs = on_ranks.knobs_of(factors, arguments["order_seed"])
    dividing.shard(model, knobs.dtype)
    found = dividing.require(wrapping.FSDP2, model)
    loop = bare_loop.Loop(model, knobs, rank.device)
    values: dict[str, Any] = {"wrapped_by": found.wrapper}
    behind = 0
    if arguments["resume"]:
        _, path = checkpoints.finished(folder)[-1]
        behind, values["checkpoint_bytes"] = checkpoints.load(loop, path), checkpoints.size_bytes(path)

    def after_step(done: int) -> None:
        if done % factors["save_steps"] == 0:
            checkpoints.save(loop, done, folder, factors["keep_checkpoints"])
        if done == arguments["killed_after"] and rank.place.rank == 0:
            keeping.kill()

    rows, evaluation = on_ranks.tensors(data.training), on_ranks.tensors(data.evaluation)
    meters = SpeedMeter(knobs.rows_a_step), UtilisationMeter(rank.device)
    curve = bare_loop.train(loop, rows, evaluation, rank.place.rank, *meters, behind, after_step)
    if arguments["resume"]:
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank.place.rank == 0:
            alone: Any = on_ranks.build(factors, rank.seed, torch.device("cpu"))
            alone.load_state_dict(whole)
            values |= _keep(alone, data, factors, folder / FINAL)
    return {"values": values, "behind": behind, "train_loss": curve.train_loss, "eval_loss": curve.eval_loss}


def _keep(model: Any, data: TokenisedSet, factors: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write model and tokenizer, read them back into other weights, and say what is different."""
    keeping.write_model(model, folder)
    keeping.write_tokenizer(data.tokenizer, folder)
    device = next(model.parameters()).device
    again: Any = on_ranks.build(factors, ANOTHER_SEED, device)
    keeping.read_model(again, folder)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    largest = max(float((ours.detach() - read.detach()).abs().max()) for ours, read in pairs)
    text = " ".join(sentence for answers in data.references.values() for sentence in answers)
    before, after = (one.encode(text).ids for one in (own_tokenizer.from_text(data.tokenizer), _tokenizer(folder)))
    return {
        "final_bytes": checkpoints.size_bytes(folder),
        "final_files": ", ".join(sorted(path.name for path in folder.iterdir())),
        "read_back_difference": largest,
        "tokenizer_reads_back": "same ids" if before == after else "other ids",
    }


def _tokenizer(folder: Path) -> Any:
    return own_tokenizer.load(folder).ids.tokenizer
