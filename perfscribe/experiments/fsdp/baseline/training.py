"""One training of a baseline cell by Trainer, with its answers, memory and utilisation."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerCallback

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.data import model_weights, squad_sets
from perfscribe.data.tokenizer import texts_of
from perfscribe.distributed import fsdp
from perfscribe.experiments.fsdp.baseline.measure import SOURCE, Baseline, shape_of
from perfscribe.instruments import precision
from perfscribe.instruments.memory import CUDA_COUNTER, PeakMemory
from perfscribe.instruments.timing import HOST_CLOCK
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import knobs, squad_scores, trainer

if TYPE_CHECKING:
    from perfscribe.data.squad_sets import TokenisedSet
    from perfscribe.training.trainer import SavingTrainer

WARMUP_STEPS = 5
# Trainer's metrics of a whole training, with their names here.
TRAINED = {
    "train_loss": "mean_train_loss",
    "train_runtime": "train_runtime_s",
    "train_samples_per_second": "train_samples_per_s",
    "train_steps_per_second": "train_steps_per_s",
}
COUNTED = ("rows", "tokens", "longest", "targets", "targets_read", "rows_with_marker", "rows_asked")
PERIOD_S = 0.1
GPU_FIGURES = ("gpu_utilisation_percent", "gpu_utilisation_std_percent", "gpu_used_bytes")


def measured(cell: Cell) -> Measurement:
    """Train and evaluate one cell and return all its results."""
    seed = torch.initial_seed() % 2**32  # set by the process that runs cells
    level = cell.read(Baseline)
    if level.device == "cpu" and level.fp16:
        raise Unsupported("fp16 training needs a GPU: Trainer has no loss scaler for a CPU")
    wanted = knobs.of(cell.factors, seed=seed)
    if level.device == "cpu":
        torch.set_num_threads(1)  # as elsewhere: with such small models, several threads wait more than they gain
    labels = SOURCE[level.model] if level.labels == "source" else "answer"
    data = squad_sets.read(Path(cell.data_folder), cell.data[0], labels)
    data = replace(data, training={name: array[: level.rows] for name, array in data.training.items()})
    model, vocabulary = _model(cell, level, seed)
    if (reached := data.facts["tokenizer"]["vocabulary_reached"]) > vocabulary:
        raise ValueError(f"vocab_size: the tokenizer has {reached} entries, the model {vocabulary}")
    before = _scores(model, data, level, wanted.dtype, "before")
    clock = StepClock(level.device)
    with tempfile.TemporaryDirectory() as folder:
        made: Any = trainer.make(model, data, wanted, Path(folder), clock)
        if clock.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with GpuWatch(level.device) as watch:
            metrics = made.train().metrics
    found = measurement(made, metrics, clock)
    found.values |= {
        "weights": "path" if level.weights == "folder" else level.weights,
        **_memory(made, clock),
        **watch.values(),
        **_facts(data),
        **before,
    }
    found.values |= _scores(model, data, level, wanted.dtype, "after") | identical(data)
    return found


def _model(cell: Cell, level: Baseline, seed: int) -> tuple[torch.nn.Module, int]:
    if level.model == "simple_gpt":
        shape = shape_of(cell.factors)
        made = simple_gpt.build(shape, seed, level.device, shift_labels=level.labels != "source")
        return made, shape.vocab_size
    weights = {"random": None, bloom.HUB: bloom.HUB}.get(level.weights, "")
    if weights == "":
        weights = model_weights.location(Path(cell.data_folder), cell.data[1])
    made = bloom.build(level.model_name, weights, seed, level.device)
    return made, bloom.shape_of(level.model_name).vocab_size


def _memory(made: Trainer, clock: StepClock) -> dict[str, Any]:
    """Return the training's peak memory; on a CPU, where torch counts none, peak and rest around one more batch."""
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
    """Return facts of the data, and what each kind of labels trains, as single values."""
    told = data.facts["tokenizer"]
    found: dict[str, Any] = {}
    for labels, trains in data.facts["trains"].items():
        found |= {f"{labels}_{name}": trains[name] for name in COUNTED}
        found |= {f"{labels}_cut_{part}": number for part, number in trains["cut"].items()}
    return {
        "data_origin": data.facts["origin"],
        "data_names": "; ".join(source["name"] for source in data.facts["sources"]),
        "tokenizer": told["kind"],
        "vocabulary_asked": told["vocabulary_asked"],
        "vocabulary_reached": told["vocabulary_reached"],
        **found,
    }


# --- results of Trainer and the clock ---------------------------------------------------------------------------


class StepClock(TrainerCallback):  # type: ignore[misc]
    """step_s: wall seconds of every optimizer step, the device synchronised at its end.

    A step starts where the one before ended, or where its epoch began: it includes fetching batches and logging, but
    not evaluation and saving. at_rest_bytes: bytes allocated by torch on the GPU at each step's end, when gradients and
    activations are freed; empty on a CPU.
    """

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.step_s: list[float] = []
        self.at_rest_bytes: list[int] = []
        self._last = 0.0

    def _now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return perf_counter()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the first step's clock."""
        self._last = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the step's time, and the memory allocated once its gradients are freed."""
        now = self._now()
        self.step_s.append(now - self._last)
        if self.on_gpu:
            self.at_rest_bytes.append(torch.cuda.memory_allocated())
        self._last = now


def series(log: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return histories of Trainer's log.

    train_loss: mean since the entry before, at train_loss_step. eval_loss, eval_runtime_s and eval_samples_per_s: of
    each evaluation, at eval_epoch and eval_step. Raises ValueError for a loss that is not finite.
    """
    steps, evaluations = ([entry for entry in log if name in entry] for name in ("loss", "eval_loss"))
    for entry in log:
        loss = float(entry.get("loss", entry.get("eval_loss", 0.0)))
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} at step {entry['step']}")
    return {
        "train_loss_step": [entry["step"] for entry in steps],
        "train_loss": [float(entry["loss"]) for entry in steps],
        "eval_epoch": [entry["epoch"] for entry in evaluations],
        "eval_step": [entry["step"] for entry in evaluations],
        "eval_loss": [float(entry["eval_loss"]) for entry in evaluations],
        "eval_runtime_s": [float(entry["eval_runtime"]) for entry in evaluations],
        "eval_samples_per_s": [float(entry["eval_samples_per_second"]) for entry in evaluations],
    }


def measurement(made: SavingTrainer, metrics: Mapping[str, float], clock: StepClock) -> Measurement:
    """Combine `metrics` (of train()'s result), the log and the clock; the first steps count as warm-up.

    samples: step_s of every optimizer step. values: Trainer's metrics, steps, parameters, wrapped_by, fsdp_units,
    checkpoints_s.
    """
    model: Any = made.model_wrapped
    held, found = series(made.state.log_history), fsdp.sharded(model)
    warmup = min(WARMUP_STEPS, len(clock.step_s) // 2)
    values: dict[str, Any] = {name: float(metrics[key]) for key, name in TRAINED.items()}
    values |= {
        "steps": int(made.state.global_step),
        "steps_per_epoch": len(clock.step_s) / float(made.state.epoch or 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "wrapped_by": found.wrapped_by,
        "fsdp_units": found.units,
        "checkpoints_s": made.checkpoints_s,
        "optimizer": type(getattr(made.optimizer, "optimizer", made.optimizer)).__name__,
    }
    if held["train_loss"]:
        values["final_train_loss"] = held["train_loss"][-1]
    if clock.at_rest_bytes:
        values["at_rest_bytes"] = sum(clock.at_rest_bytes) / len(clock.at_rest_bytes)
    return Measurement(
        samples={"step_s": clock.step_s[warmup:]},
        warmup={"step_s": clock.step_s[:warmup]},
        values=values,
        series=held,
        timers={"step_s": HOST_CLOCK},
        warmup_s=sum(clock.step_s[:warmup]),
        timed_s=float(metrics["train_runtime"]) - sum(clock.step_s[:warmup]),
    )


class GpuWatch:
    """Samples NVML's utilisation and used memory of one GPU in a thread while something runs; nothing on a CPU.

    Utilisation is the share of NVML's last period (a sixth of a second to one second) in which any kernel was resident,
    whether or not it used the whole device.
    """

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.utilisation_percent: list[float] = []
        self.used_bytes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        from perfscribe.distributed.links import of_visible

        of_visible(1, self._until_stopped)

    def _until_stopped(self, nvml: Any, handles: list[Any]) -> list[Any]:
        while not self._stop.wait(PERIOD_S):
            self.utilisation_percent.append(float(nvml.nvmlDeviceGetUtilizationRates(handles[0]).gpu))
            self.used_bytes.append(int(nvml.nvmlDeviceGetMemoryInfo(handles[0]).used))
        return []

    def __enter__(self) -> GpuWatch:
        if self.on_gpu:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self.on_gpu:
            self._thread.join()

    def values(self) -> dict[str, Any]:
        """Return utilisation (mean, population standard deviation), mean bytes used, number of samples; or why not."""
        if not self.utilisation_percent:
            why = "NVML does not tell it" if self.on_gpu else "no GPU: training ran on the CPU"
            return dict.fromkeys(GPU_FIGURES, why)
        figures = fmean(self.utilisation_percent), pstdev(self.utilisation_percent), fmean(self.used_bytes)
        found = dict(zip(GPU_FIGURES, figures, strict=True))
        return {**found, "gpu_utilisation_samples": len(self.utilisation_percent)}


# --- answers ----------------------------------------------------------------------------------------------------


def _scores(model: Any, data: TokenisedSet, level: Baseline, dtype: str, when: str) -> dict[str, float]:
    texts = generate(model, data, level.new_tokens, level.generation_batch, level.device, dtype)
    return {f"{when}_{name}": figure for name, figure in scored(texts, data).items()}


@torch.no_grad()
def generate(model: Any, data: TokenisedSet, new_tokens: int, batch: int, device: str, dtype: str) -> dict[str, str]:
    """Return text by question id: greedy, at most new_tokens ids each, up to the first end token."""
    told, texts = data.facts["tokenizer"], []
    was_training = model.training
    model.eval()
    ids, mask = (torch.from_numpy(data.prompts[name]).to(device) for name in ("input_ids", "attention_mask"))
    with precision.autocast(device, dtype):
        for start in range(0, len(ids), batch):
            part = slice(start, start + batch)
            found = model.generate(
                input_ids=ids[part],
                attention_mask=mask[part],
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=told["pad_id"],
                eos_token_id=told["end_id"],
            )
            texts += texts_of(found[:, ids.size(1) :].tolist(), data.tokenizer, told["end_id"])
    model.train(was_training)
    return dict(zip(data.references, texts, strict=True))


def scored(texts: dict[str, str], data: TokenisedSet) -> dict[str, float]:
    """Return exact match and F1 in percent, by the official definition and by the workshop's."""
    found = {}
    for way, score in (("", squad_scores.score), ("workshop_", squad_scores.workshop_score)):
        scores = score(texts, data.references)
        found[f"{way}exact_match_percent"] = scores.exact_match_percent
        found[f"{way}f1_percent"] = scores.f1_percent
    return found


def identical(data: TokenisedSet) -> dict[str, float]:
    """Score each question's first reference as its answer, word for word: a correct definition gives 100."""
    texts = {name: answers[0] for name, answers in data.references.items()}
    return {f"identical_{name}": figure for name, figure in scored(texts, data).items()}
