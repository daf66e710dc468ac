"""Converts records of trainings to tracker runs with curves."""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.records.records import is_number

MIB = 2**20
# Value of a record → key of the same figure in W&B, as Trainer and the FSDP workshop's callbacks log it, and divisor.
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
# Series of a record → key of its curve, and the series with its step numbers.
CURVES: dict[str, tuple[str, str]] = {
    "train_loss": ("train/loss", "train_loss_step"),
    "eval_loss": ("eval/loss", "eval_step"),
    "eval_runtime_s": ("eval/runtime", "eval_step"),
    "eval_samples_per_s": ("eval/samples_per_second", "eval_step"),
}
TRAINED_BY = ("train_loss", "eval_loss")  # a record with one of these series is a training


def summary_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a record, under the workshop's keys if it has them; texts under their names."""
    summary = {}
    for name, value in values.items():
        key, unit = SUMMARY.get(name, (name, 1)) if is_number(value) else (name, 1)
        if value is not None:
            summary[key] = value if unit == 1 else value / unit
    return summary


@dataclass(frozen=True)
class Run:
    """Run for a tracker.

    id: depends only on the records. group: the experiment. config: factors and provenance. summary: single figures and
    texts. points: figures by step and key. time: of the measurement, in s since the epoch.
    """

    id: str
    name: str
    group: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    points: Mapping[int, Mapping[str, float]]
    time: float


def of_records(rows: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Make the runs of all trainings with figures, in the order of the rows."""
    trainings: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == "ok" and any(row["series"].get(name) for name in TRAINED_BY):
            trainings.setdefault(row["experiment"], []).append(row)
    return [_training(row, _varying(group)) for group in trainings.values() for row in group]


def _varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Factors that have different levels in these rows."""
    names = dict.fromkeys(name for row in rows for name in row["factors"])
    return [name for name in names if len({str(row["factors"].get(name)) for row in rows}) > 1]


def _training(row: Mapping[str, Any], varying: Sequence[str]) -> Run:
    levels = [f"{name}={row['factors'][name]}" for name in varying if name in row["factors"]]
    rounds = [f"round={row['round']}"] if row["round"] > 1 else []
    measured = {"origin": row["origin"], "environment": row["environment"] or "none", "fingerprint": row["fingerprint"]}
    return Run(
        id=row["id"],
        name=" ".join([row["experiment"], *levels, *rounds]),
        group=row["experiment"],
        config={**row["factors"], **measured},
        summary=summary_of(row["values"]),
        points=_points(row),
        time=datetime.datetime.fromisoformat(row["provenance"]["time"]).timestamp(),
    )


def _curves(row: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[int], Sequence[float]]]:
    """Yield key, steps and figures of each curve."""
    series = row["series"]
    for name, (key, steps) in CURVES.items():
        figures = series.get(name, [])
        if figures:
            yield key, series.get(steps) or _places(series, name, len(figures)), figures
    rows_a_step = _rows_a_step(row["factors"])
    step_s = [*row["warmup"].get("step_s", []), *row["samples"].get("step_s", [])]
    if rows_a_step and step_s:
        yield "train/samples_per_second", range(1, len(step_s) + 1), [rows_a_step / s for s in step_s if s > 0]


def _places(series: Mapping[str, Any], name: str, count: int) -> Sequence[int]:
    """Steps of a curve without step numbers: evaluations are spaced evenly over the steps with a training loss."""
    steps = len(series["train_loss"]) if name.startswith("eval_") else count
    return [round(steps * number / count) for number in range(1, count + 1)]


def _rows_a_step(factors: Mapping[str, Any]) -> int:
    """Rows per optimizer step of all ranks; 0 if the factors are unknown."""
    batch, accumulated = factors.get("batch_size"), factors.get("grad_acc")
    return batch * accumulated * int(factors.get("world_size", 1)) if batch and accumulated else 0


def _points(row: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    by_step: dict[int, dict[str, float]] = {}
    for key, steps, figures in _curves(row):
        for step, figure in zip(steps, figures, strict=False):
            if is_number(figure):
                by_step.setdefault(int(step), {})[key] = float(figure)
    return {step: by_step[step] for step in sorted(by_step)}
