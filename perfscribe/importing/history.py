"""What a log of somebody else's training tells: its curves and its summary, whatever file they came in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfscribe.tracking import keys

# Names of Trainer's log lines and of its keys in W&B → names that records have.
EVALUATION = {
    "eval_loss": "eval_loss",
    "eval_runtime": "eval_runtime_s",
    "eval_samples_per_second": "eval_samples_per_s",
}
TRAINED = {
    "train_loss": "mean_train_loss",
    "train_runtime": "train_runtime_s",
    "train_samples_per_second": "train_samples_per_s",
    "train_steps_per_second": "train_steps_per_s",
}


@dataclass
class History:
    """One training. logs, evaluations: figures of each by record's names, with epoch and step where they are told.

    summary: single figures and texts by record's names. total_steps: optimizer steps of the whole training, 0 where
    nothing tells them.
    """

    name: str
    logs: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    total_steps: int = 0
    dropped: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.logs or self.evaluations or self.summary)

    def add(self, line: Mapping[str, float], step: float | None = None) -> None:
        """One line of Trainer's log, by its keys; figures that are no finite numbers are dropped, and named."""
        said = {name: value for name, value in line.items() if math.isfinite(value)}
        self.dropped += [f"{name} {line[name]}" for name in line if name not in said]
        place = {"epoch": said["epoch"]} if "epoch" in said else {}
        if step is not None:
            place["step"] = step
        if "eval_loss" in said:
            self.evaluations.append(place | {to: said[name] for name, to in EVALUATION.items() if name in said})
        elif "loss" in said:
            self.logs.append(place | {"train_loss": said["loss"]})
        self.summary |= {to: said[name] for name, to in TRAINED.items() if name in said}
        if "train_runtime" in said and "epoch" in said:
            self.summary["epochs"] = said["epoch"]

    def values(self) -> dict[str, Any]:
        """The summary, and what follows from it: steps, rows, steps an epoch, the last training loss."""
        found = dict(self.summary)
        runtime, rate = found.get("train_runtime_s"), found.get("train_steps_per_s")
        steps = self.total_steps or (round(runtime * rate) if runtime and rate else 0)
        epochs = found.get("epochs") or max((one.get("epoch", 0.0) for one in self.evaluations), default=0.0)
        if steps:
            found["steps"] = steps
            found["steps_told_by"] = "progress bar" if self.total_steps else "steps/s x runtime"
        if steps and epochs:
            found["steps_per_epoch"] = steps / epochs
        if runtime and found.get("train_samples_per_s"):
            found["rows_trained"] = runtime * found["train_samples_per_s"]
        if self.logs:
            found["final_train_loss"] = self.logs[-1]["train_loss"]
        rates = [one["eval_samples_per_s"] for one in self.evaluations if "eval_samples_per_s" in one]
        if rates:
            found["eval_samples_per_s"] = rates[0]
        return found

    def series(self) -> dict[str, list[Any]]:
        """The curves, as records of trainings have them; steps that nothing tells follow from epochs, if these are."""
        steps_an_epoch = float(self.values().get("steps_per_epoch", 0.0))
        found: dict[str, list[Any]] = {}
        if self.logs:
            found["train_loss"] = [one["train_loss"] for one in self.logs]
            found |= _places(self.logs, "train_loss", steps_an_epoch)
        if self.evaluations:
            found["eval_loss"] = [one["eval_loss"] for one in self.evaluations]
            found |= _places(self.evaluations, "eval", steps_an_epoch)
            for name in ("eval_runtime_s", "eval_samples_per_s"):
                if all(name in one for one in self.evaluations):
                    found[name] = [one[name] for one in self.evaluations]
        return found


def _places(entries: list[dict[str, float]], name: str, steps_an_epoch: float) -> dict[str, list[Any]]:
    """Epochs and steps of a curve, as far as they are known for each of its points."""
    found: dict[str, list[Any]] = {}
    if all("epoch" in one for one in entries):
        found[f"{name}_epoch"] = [one["epoch"] for one in entries]
        if steps_an_epoch:
            found[f"{name}_step"] = [round(one["epoch"] * steps_an_epoch) for one in entries]
    if all("step" in one for one in entries):
        found[f"{name}_step"] = [int(one["step"]) for one in entries]
    return found


def summary_name(key: str) -> tuple[str, float]:
    """A key of W&B's summary → the record's name for it, and what it is multiplied by; its own name where none is."""
    for name, (known, unit) in keys.SUMMARY.items():
        if key == known:
            return name, unit
    return key, 1
