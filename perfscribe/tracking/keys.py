"""The keys under which the FSDP workshop's runs are found in a tracker, and the names that records have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIB = 2**20

# A record's value → the key of Trainer's or the callbacks' figure in W&B, and what it is divided by.
SUMMARY: dict[str, tuple[str, float]] = {
    "mean_train_loss": ("train/train_loss", 1),
    "train_runtime_s": ("train/train_runtime", 1),
    "train_samples_per_s": ("train/train_samples_per_second", 1),
    "train_steps_per_s": ("train/train_steps_per_second", 1),
    "train_loss": ("train/train_loss", 1),
    "train_samples_per_second": ("train/train_samples_per_second", 1),
    "steps": ("train/global_step", 1),
    "gpu_utilisation_percent": ("avg_gpu_util_%", 1),
    "gpu_utilisation_std_percent": ("std_gpu_util_%", 1),
    "at_rest_bytes": ("avg_mem_alloc_MB", MIB),
    "reserved_bytes": ("avg_mem_reserved_MB", MIB),
    "gpu_used_bytes": ("avg_mem_total_MB", MIB),
}
# A record's series → the key of its curve, and the series that holds its steps.
CURVES: dict[str, tuple[str, str]] = {
    "train_loss": ("train/loss", "train_loss_step"),
    "train_samples_per_s": ("train/samples_per_second", "train_samples_per_s_step"),
    "eval_loss": ("eval/loss", "eval_step"),
    "eval_runtime_s": ("eval/runtime", "eval_step"),
    "eval_samples_per_s": ("eval/samples_per_second", "eval_step"),
}
TRAINED_BY = ("train_loss", "eval_loss")  # what has one of these series is a training


def is_number(value: Any) -> bool:
    """Whether a tracker can draw it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def summary(values: Mapping[str, Any]) -> dict[str, Any]:
    """A record's single values, under the workshop's keys where it has some, else under their own names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key, unit = SUMMARY.get(name, (name, 1))
        found[key] = value / unit if is_number(value) and unit != 1 else value
    return {key: value for key, value in found.items() if value is not None}
