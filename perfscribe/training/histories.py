"""What a finished Trainer tells, as a Measurement: losses, rates, run times, and what wrapped the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Measurement
from perfscribe.instruments.timing import HOST_CLOCK

if TYPE_CHECKING:
    from transformers import Trainer

    from perfscribe.training.step_clock import StepClock

WARMUP_STEPS = 5
# Trainer's own metrics of a whole training, by the names that they have here.
TRAINED = {
    "train_loss": "mean_train_loss",
    "train_runtime": "train_runtime_s",
    "train_samples_per_second": "train_samples_per_s",
    "train_steps_per_second": "train_steps_per_s",
}


def _column(log: Sequence[Mapping[str, Any]], key: str, at: str) -> tuple[list[Any], list[float]]:
    """Values of one key and where they stand, in the order of the log."""
    found = [(entry[at], float(entry[key])) for entry in log if key in entry]
    return [place for place, _ in found], [value for _, value in found]


def series(log: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Histories of Trainer's log.

    train_loss: the mean since the entry before, at train_loss_step. eval_loss, eval_runtime_s and eval_samples_per_s:
    of each evaluation, at eval_epoch and eval_step. ValueError for a loss that is no finite number.
    """
    steps, losses = _column(log, "loss", "step")
    epochs, eval_losses = _column(log, "eval_loss", "epoch")
    for step, loss in (*zip(steps, losses, strict=True), *zip(epochs, eval_losses, strict=True)):
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} at step or epoch {step}")
    return {
        "train_loss_step": steps,
        "train_loss": losses,
        "eval_epoch": epochs,
        "eval_step": _column(log, "eval_loss", "step")[0],
        "eval_loss": eval_losses,
        "eval_runtime_s": _column(log, "eval_runtime", "step")[1],
        "eval_samples_per_s": _column(log, "eval_samples_per_second", "step")[1],
    }


def measurement(trainer: Trainer, metrics: Mapping[str, float], clock: StepClock) -> Measurement:
    """Everything that `metrics` (of train()'s result), the log and the clock say; the first steps count as warm-up.

    samples: step_s of every optimizer step. values: Trainer's own figures, steps, parameters, wrapped_by, fsdp_units.
    """
    from perfscribe.training import wrapping

    model: Any = trainer.model
    held = series(trainer.state.log_history)
    warmup = min(WARMUP_STEPS, len(clock.step_s) // 2)
    values: dict[str, Any] = {name: float(metrics[key]) for key, name in TRAINED.items()}
    values |= {
        "steps": int(trainer.state.global_step),
        "steps_per_epoch": len(clock.step_s) / max(float(trainer.state.epoch or 1), 1e-9),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "wrapped_by": wrapping.of_trainer(trainer),
        "fsdp_units": wrapping.units(trainer.model_wrapped),
        "optimizer": type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)).__name__,
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
