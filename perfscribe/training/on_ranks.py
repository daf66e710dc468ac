"""One training of the FSDP workshop on the ranks of a launch: model and rows made, divided, trained, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.data import squad_sets
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import bare_loop, dividing, knobs, wrapping
from perfscribe.training.bare_loop import Curve, Rows
from perfscribe.training.meters import SpeedMeter, UtilisationMeter

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

TRAINER, BARE, TUNED = "trainer", "bare loop", "tuned"
SIMPLE_GPT = "simple_gpt"
BLOCKS = {SIMPLE_GPT: "TransformerEncoderLayer"}
SHAPE_NAMES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "ffn")


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """What this rank has measured; launching.combine puts the ranks together.

    arguments: factors (model_name; for simple_gpt its sizes; the knobs; loop, wrap, labels, weights), data_folder and
    dataset. Samples are the optimizer steps' times.
    """
    factors, device = arguments["factors"], rank.device
    same_threads(device)
    own, ranks = knobs_of(factors, rank.seed), rank.place.world_size
    held = squad_sets.read(Path(arguments["data_folder"]), arguments["dataset"], factors["labels"])
    model = build(factors, rank.seed, device)
    values = {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary_reached": _vocabulary(held.facts)}
    values["rows_from"] = held.facts["origin"]
    _reset_peaks(device)
    speed = SpeedMeter(own.rows_a_step * ranks, settle=lambda: _settle(device))
    job = Job(model, own, factors, rank, held, speed)
    curve, figures = {TRAINER: _by_trainer, BARE: _by_loop, TUNED: _tuned}[factors["loop"]](job)
    return {
        "host": rank.place.host,
        "samples": {"step_ms": [1e3 * s for s in speed.step_s]},
        "warmup": {"step_ms": [1e3 * s for s in speed.first_s]},
        "values": values | figures | job.utilisation.summary() | speed.summary(),
        "series": {"train_loss": curve.train_loss, "eval_loss": curve.eval_loss},
    }


class Job:
    """One training on one rank, and what counts it."""

    def __init__(
        self,
        model: nn.Module,
        own: knobs.Knobs,
        factors: Mapping[str, Any],
        rank: Rank,
        data: squad_sets.TokenisedSet,
        speed: SpeedMeter,
    ) -> None:
        self.model, self.knobs, self.factors, self.rank, self.data = model, own, factors, rank, data
        self.rows, self.evaluation = tensors(data.training), tensors(data.evaluation)
        self.speed, self.utilisation = speed, UtilisationMeter(rank.device)


Outcome = tuple[Curve, dict[str, Any]]


def _by_trainer(job: Job) -> Outcome:
    from perfscribe.training import hf_loop

    curve, found, own = hf_loop.train(job, BLOCKS.get(job.factors["model_name"], "BloomBlock"))
    return curve, _figures(curve, job, own) | seen(found)


def _by_loop(job: Job) -> Outcome:
    if job.factors["wrap"] == wrapping.FSDP2:
        dividing.shard(job.model, job.knobs.dtype)
    found = dividing.require(job.factors["wrap"], job.model)
    loop = bare_loop.Loop(job.model, job.knobs, job.rank.device)
    curve = bare_loop.train(loop, job.rows, job.evaluation, job.rank.place.rank, job.speed, job.utilisation)
    return curve, _figures(curve, job, {}) | seen(found)


def _tuned(job: Job) -> Outcome:
    from perfscribe.training import tuned

    return tuned.train(job)


def seen(found: dividing.Divided) -> dict[str, Any]:
    """What divided the model, as a record has it."""
    return {"wrapped_by": found.wrapper, "units": found.units, "local_share": found.local_share}


def same_threads(device: torch.device) -> None:
    """On a CPU one thread a rank, however many ranks there are: as much for each as a GPU of its own is elsewhere."""
    if device.type == "cpu":
        torch.set_num_threads(1)


def knobs_of(factors: Mapping[str, Any], seed: int) -> knobs.Knobs:
    """The knobs of a cell; its dtype names both of the workshop's switches."""
    low = {name: factors["dtype"] == name for name in ("fp16", "bf16")}
    return knobs.of(factors, **low, device=factors["device"], seed=seed % 2**32)


def build(factors: Mapping[str, Any], seed: int, device: torch.device) -> nn.Module:
    """The model of a cell, the same weights on every rank."""
    if factors["model_name"] == SIMPLE_GPT:
        return simple_gpt.build(shape_of(factors), seed, str(device))
    named = factors["weights"]
    weights = None if named == "random" else named if named == bloom.HUB else str(squad_sets.from_checkout(named))
    return bloom.build(factors["model_name"], weights, seed, str(device)).model


def shape_of(factors: Mapping[str, Any]) -> SimpleGptShape:
    """The custom model's sizes among the factors."""
    return SimpleGptShape(**{name: factors[name] for name in SHAPE_NAMES})


def _figures(curve: Curve, job: Job, own: Mapping[str, float]) -> dict[str, Any]:
    """Trainer's own figures by its own definitions, for either loop, and the losses.

    samples_per_second: rows x epochs over the runtime, which evaluation is in. train_loss: the mean over all steps.
    """
    trained = len(job.rows["labels"]) * job.knobs.num_epochs
    mean = sum(curve.train_loss) / len(curve.train_loss)
    return {
        "train_runtime_s": curve.runtime_s,
        "train_samples_per_second": own.get("train_samples_per_second", trained / curve.runtime_s),
        "train_loss": own.get("train_loss", mean),
        "last_train_loss": curve.train_loss[-1],
        "eval_loss": curve.eval_loss[-1],
    }


def tensors(arrays: Mapping[str, Any]) -> Rows:
    """Arrays of shape (rows, length) as tensors on the CPU."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _vocabulary(facts: Mapping[str, Any]) -> int:
    return int(facts["tokenizer"]["vocabulary_reached"])


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
