"""One training of a cell of baseline, with what stands around it: answers, memory, utilisation."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.data import model_weights, squad_sets
from perfscribe.experiments.baseline.measure import labels_of, shape_of
from perfscribe.instruments.memory import CUDA_COUNTER, PeakMemory
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import answers, histories, knobs, trainer
from perfscribe.training.gpu_watch import GpuWatch
from perfscribe.training.knobs import Knobs
from perfscribe.training.step_clock import StepClock

if TYPE_CHECKING:
    from transformers import Trainer

    from perfscribe.data.squad_sets import TokenisedSet

NAMES = ("tokens", "longest", "targets", "targets_read", "rows_with_marker", "rows_asked")


def _model(cell: Cell, seed: int) -> tuple[torch.nn.Module, str, int]:
    """The model, where its weights are from, and its vocabulary."""
    if cell["model"] == "simple_gpt":
        shape = shape_of(cell.factors)
        made = simple_gpt.build(shape, seed, cell["device"], shift_labels=cell["labels"] != "source")
        return made, "random", shape.vocab_size
    weights = {"random": None, bloom.HUB: bloom.HUB}.get(cell["weights"], "")
    if weights == "":
        weights = model_weights.location(Path(cell.data_folder), cell.data[1])
    built = bloom.build(cell["model_name"], weights, seed, cell["device"])
    return built.model, built.weights, bloom.shape_of(cell["model_name"]).vocab_size


def _first_rows(data: TokenisedSet, rows: int) -> TokenisedSet:
    return replace(data, training={name: array[:rows] for name, array in data.training.items()})


def _knobs(cell: Cell, seed: int) -> Knobs:
    if cell["device"] == "cpu" and cell["fp16"]:
        raise Unsupported("fp16 training needs a GPU: Trainer has no loss scaler for a CPU")
    return knobs.of(cell.factors, seed=seed)


def _memory(made: Trainer, clock: StepClock) -> dict[str, Any]:
    """Peak of the whole training and memory at rest; on a CPU of one more batch, as torch counts nothing there."""
    if clock.on_gpu:
        return {"peak_allocated_bytes": torch.cuda.max_memory_allocated(), "memory_counter": CUDA_COUNTER}
    model: Any = made.model_wrapped
    optimizer: Any = made.optimizer
    batch = next(iter(made.get_train_dataloader()))
    with PeakMemory("cpu") as memory:
        made.training_step(model, batch)
        optimizer.step()
        optimizer.zero_grad()
    return {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "at_rest_bytes": memory.allocated_before_bytes,
        "memory_counter": memory.counter,
    }


def _facts(data: TokenisedSet) -> dict[str, Any]:
    """What the data are, and what each way to label trains, as single values."""
    told = data.facts["tokenizer"]
    counted = {
        f"{labels}_{name}": trains[name] for labels, trains in data.facts["trains"].items() for name in ("rows", *NAMES)
    }
    cut = {
        f"{labels}_cut_{part}": number
        for labels, trains in data.facts["trains"].items()
        for part, number in trains["cut"].items()
    }
    return {
        "data_origin": data.facts["origin"],
        "data_names": "; ".join(source["name"] for source in data.facts["sources"]),
        "tokenizer": told["kind"],
        "vocabulary_asked": told["vocabulary_asked"],
        "vocabulary_reached": told["vocabulary_reached"],
        **counted,
        **cut,
    }


def _scores(model: Any, data: TokenisedSet, cell: Cell, dtype: str, when: str) -> dict[str, float]:
    texts = answers.generate(model, data, cell["new_tokens"], cell["generation_batch"], cell["device"], dtype)
    return {f"{when}_{name}": figure for name, figure in answers.scored(texts, data).items()}


def measured(cell: Cell) -> Measurement:
    """Everything of one cell."""
    seed = torch.initial_seed() % 2**32  # which the process that runs cells has set
    wanted = _knobs(cell, seed)
    if cell["device"] == "cpu":
        torch.set_num_threads(1)  # as elsewhere: several wait for each other more than they share of so small models
    data = _first_rows(squad_sets.read(Path(cell.data_folder), cell.data[0], labels_of(cell.factors)), cell["rows"])
    model, weights, vocabulary = _model(cell, seed)
    trainer.check_vocabulary(data, vocabulary)
    before = _scores(model, data, cell, wanted.dtype, "before")
    clock = StepClock(cell["device"])
    with tempfile.TemporaryDirectory() as folder:
        made = trainer.make(model, data, wanted, Path(folder), [clock])
        if clock.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with GpuWatch(cell["device"]) as watch:
            metrics = made.train().metrics
    found = histories.measurement(made, metrics, clock)
    found.values |= {"weights": weights, **_memory(made, clock), **watch.values(), **_facts(data), **before}
    found.values |= _scores(model, data, cell, wanted.dtype, "after") | answers.identical(data)
    return found
