"""One training of the FSDP workshop on the ranks of a launch: makes model and rows, shards, trains, measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from perfscribe.analytic.workshop_shapes import BloomShape, SimpleGptShape
from perfscribe.base.cells import read
from perfscribe.data import squad_sets
from perfscribe.distributed import fsdp
from perfscribe.instruments.timing import synchronise
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import bare_loop, knobs
from perfscribe.training.bare_loop import Curve, Rows
from perfscribe.training.launching import RANDOM, Training, shape_of
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank


@dataclass
class Job:
    """One training on one rank, with its meters."""

    model: nn.Module
    knobs: knobs.Knobs
    level: Training
    rank: Rank
    data: squad_sets.TokenisedSet
    speed: SpeedMeter
    utilisation: UtilisationMeter


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Run a training on this rank and return its results; launching.combine merges the ranks.

    arguments: factors (Training's; for simple_gpt its sizes; the knobs), data_folder and dataset. Samples are the times
    of optimizer steps.
    """
    factors, device = arguments["factors"], rank.device
    level = read(factors, Training)
    same_threads(device)
    own, ranks = knobs_of(factors, rank.seed), rank.place.world_size
    held = squad_sets.read(Path(arguments["data_folder"]), arguments["dataset"], level.labels)
    model = build(level, shape_of(factors), rank.seed, device)
    values = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary_reached": int(held.facts["tokenizer"]["vocabulary_reached"]),
        "rows_from": held.facts["origin"],
    }
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    speed = SpeedMeter(own.rows_a_step * ranks, settle=partial(synchronise, device))
    job = Job(model, own, level, rank, held, speed, UtilisationMeter(device))
    curve, figures = {"trainer": _by_trainer, "bare loop": _by_loop, "tuned": _tuned}[level.loop](job)
    return {
        "host": rank.place.host,
        "samples": {"step_ms": [1e3 * s for s in speed.step_s]},
        "warmup": {"step_ms": [1e3 * s for s in speed.first_s]},
        "values": values | figures | job.utilisation.summary() | speed.summary(),
        "series": {"train_loss": curve.train_loss, "eval_loss": curve.eval_loss},
    }


Outcome = tuple[Curve, dict[str, Any]]


def _by_trainer(job: Job) -> Outcome:
    from perfscribe.training import trainer

    curve, found, own = trainer.train(job)
    return curve, _figures(curve, job, own) | asdict(found)


def _by_loop(job: Job) -> Outcome:
    if job.level.wrap == fsdp.FSDP2:
        fsdp.shard(job.model, fsdp.blocks_of(job.model), job.knobs.dtype, job.knobs.dtype)
    found = fsdp.require(job.level.wrap, job.model)
    loop, rows = bare_loop.Loop(job.model, job.knobs, job.rank.device), tensors(job.data.training)
    evaluation = tensors(job.data.evaluation)
    curve = bare_loop.train(loop, rows, evaluation, job.rank.place.rank, job.speed, job.utilisation)
    return curve, _figures(curve, job, {}) | asdict(found)


def _tuned(job: Job) -> Outcome:
    from perfscribe.training import tuned

    return tuned.train(job, tensors(job.data.training))


def same_threads(device: torch.device) -> None:
    """On a CPU, use one thread per rank, so that resources per rank are constant, as with one GPU per rank."""
    if device.type == "cpu":
        torch.set_num_threads(1)


def knobs_of(factors: Mapping[str, Any], seed: int) -> knobs.Knobs:
    """Make the knobs of a cell; its dtype sets the workshop's switches fp16 and bf16."""
    dtype = read(factors, Training).dtype
    return knobs.of(factors, fp16=dtype == "fp16", bf16=dtype == "bf16", seed=seed % 2**32)


def build(level: Training, shape: SimpleGptShape | BloomShape, seed: int, device: torch.device) -> nn.Module:
    """Make the model of a cell, with the same weights on every rank."""
    weights = level.weights
    if isinstance(shape, SimpleGptShape):
        return simple_gpt.build(shape, seed, str(device))
    if weights not in (RANDOM, bloom.HUB):
        weights = str(squad_sets.from_checkout(weights))
    model: nn.Module = bloom.build(level.model_name, None if weights == RANDOM else weights, seed, str(device))
    return model


def _figures(curve: Curve, job: Job, own: Mapping[str, float]) -> dict[str, Any]:
    """Trainer's figures by its definitions, for either loop, and the losses.

    samples_per_second: rows x epochs / runtime, which includes evaluation. train_loss: mean over all steps.
    """
    trained = len(job.data.training["labels"]) * job.knobs.num_epochs
    mean = sum(curve.train_loss) / len(curve.train_loss)
    return {
        "train_runtime_s": curve.runtime_s,
        "evaluation_s": curve.evaluation_s,
        "checkpoints_s": curve.checkpoints_s,
        "train_samples_per_second": own.get("train_samples_per_second", trained / curve.runtime_s),
        "train_loss": own.get("train_loss", mean),
        "last_train_loss": curve.train_loss[-1],
        "eval_loss": curve.eval_loss[-1],
    }


def tensors(arrays: Mapping[str, Any]) -> Rows:
    """Convert arrays of shape (rows, length) to tensors on the CPU."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
