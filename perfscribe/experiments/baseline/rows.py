"""Records of single cells rearranged for tables: a row a metric, an evaluation, a moment of answering."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base import files
from perfscribe.records.records import Record

WAYS = {  # to label, and who does
    "answer": "ours",
    "source": "the workshop's BLOOM scripts",
    "source_prompt": "its custom model's scripts",
}
MB = 2**20  # as the workshop's callback counts it
LABELS = ("answer", "source")
# What tells two rows of one model apart, and not two settings.
NOT_SETTINGS = ("labels", "rows")
Get = Callable[[Record], Any]


def of_model(records: Iterable[Record], model: str) -> list[Record]:
    """The records of one of the two models."""
    return [record for record in records if record.factors["model"] == model]


def model_name(record: Record) -> str:
    """What the record's model is called in a row."""
    factors = record.factors
    if factors["model"] == "bloom":
        return str(factors["model_name"])
    return "SimpleGPTModel {num_layers} x {hidden_size}, vocabulary {model_vocab_size}".format(**factors)


def dtype(record: Record) -> str:
    """The level of precision that the two switches mean."""
    return "fp16" if record.factors["fp16"] else "bf16" if record.factors["bf16"] else "fp32"


def shape(record: Record) -> SimpleGptShape:
    """The shape of a record of the small model."""
    sizes = {name: record.factors[name] for name in ("hidden_size", "num_layers", "num_heads", "ffn", "tied")}
    return SimpleGptShape(vocab_size=record.factors["model_vocab_size"], **sizes)


def named(record: Record, **more: Any) -> Record:
    """The record under the factors that every table of the chapter shows."""
    own = {"model_name": model_name(record), "device": record.factors["device"], "dtype": dtype(record)}
    return replace(record, factors={**own, "labels": record.factors["labels"], **more})


def steps_samples_per_s(record: Record) -> float:
    """Rows of a step over the median time of a step: evaluation is not in it."""
    times = [time for times in record.samples["step_s"] for time in times]
    return float(record.factors["batch_size"] * record.factors["grad_acc"] / median(times))


def _eval_loss(epoch: int) -> Get:
    def get(record: Record) -> Any:
        by_epoch = dict(zip(record.series["eval_epoch"], record.series["eval_loss"], strict=True))
        return by_epoch.get(float(epoch), f"no evaluation at epoch {epoch}")

    return get


def _number(name: str, scale: float = 1.0) -> Get:
    def get(record: Record) -> Any:
        found = record.values.get(name, "not recorded")
        return found * scale if isinstance(found, (int, float)) else found

    return get


# The workshop's nine rows; its first and eighth are here two: the mean over all steps is not the last step's loss, and
# a peak is not what is left after a step.
# Above them how many rows were trained, on which losses and speed depend.
METRICS: tuple[tuple[str, str, Get], ...] = (
    ("Rows trained", "rows given to Trainer", lambda record: record.factors["rows"]),
    ("Train Loss (Final)", "train_loss of the summary, the mean over all steps", _number("mean_train_loss")),
    ("Train Loss (last logged)", "train/loss", _number("final_train_loss")),
    ("Eval Loss (Epoch 1)", "eval/loss", _eval_loss(1)),
    ("Eval Loss (Epoch 2)", "eval/loss", _eval_loss(2)),
    ("Eval Loss (Epoch 3)", "eval/loss", _eval_loss(3)),
    ("Training Speed (samples/sec)", "train_samples_per_second", _number("train_samples_per_s")),
    (
        "Evaluation Speed (samples/sec)",
        "eval/samples_per_second, median",
        lambda record: median(record.series["eval_samples_per_s"] or [float("nan")]),
    ),
    ("Steps per Epoch", "steps over epochs", _number("steps_per_epoch")),
    ("Memory Allocated (MB), peak", "torch's allocator", _number("peak_allocated_bytes", 1 / MB)),
    ("Memory Allocated (MB), at rest", "torch's allocator, after steps", _number("at_rest_bytes", 1 / MB)),
    ("GPU Utilization (%)", "NVML, mean over the training", _number("gpu_utilisation_percent")),
)


BY_ROWS = ("Train", "Eval Loss", "Steps")  # how metrics begin that depend on how many rows were trained


def _settings(records: Iterable[Record]) -> list[dict[str, Record]]:
    """The records of each setting by their labels, in the order in which settings first stand."""
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        same = {name: level for name, level in record.factors.items() if name not in NOT_SETTINGS}
        found.setdefault(files.canonical(same), {})[record.factors["labels"]] = record
    return list(found.values())


def _figure(get: Get, record: Record | None) -> Any:
    """A metric of a cell; where there is none, why."""
    if record is None:
        return "not among the labels measured"
    if not record.ok:
        return f"{record.status} ({record.reason})" if record.reason else record.status
    found = get(record)
    return "not finite" if isinstance(found, float) and found != found else found


def nine(records: Sequence[Record]) -> list[Record]:
    """A row a metric and setting, with the figure of each way to label as a value of its own."""
    rows = []
    for by_labels in _settings(records):
        base = next((record for record in by_labels.values() if record.ok), next(iter(by_labels.values())))
        for metric, where, get in METRICS:
            values = {name: _figure(get, by_labels.get(name)) for name in LABELS} if base.ok else {}
            row = named(base, metric=metric, where=where)
            flags = [*row.flags, *_rows_differ(metric, by_labels)]
            rows.append(replace(_only(row, values), flags=flags))
    return rows


def _samples_per_s_between(record: Record, first: int, last: int) -> float | str:
    """Rows of the steps first to last (from 0, last left out) over their time; why not where they were not kept."""
    times = [time for kept in (record.warmup, record.samples) for part in kept["step_s"] for time in part][first:last]
    if len(times) < last - first:
        return "not each step kept"
    return float(record.factors["batch_size"] * record.factors["grad_acc"] * len(times) / sum(times))


def _rows_differ(metric: str, by_labels: dict[str, Record]) -> list[str]:
    """What a reader has to know who would take the difference of two columns for one of labels."""
    trained = {name: by_labels[name].factors["rows"] for name in LABELS if name in by_labels and by_labels[name].ok}
    if not metric.startswith(BY_ROWS) or len(set(trained.values())) < 2:
        return []
    return [f"of {trained['answer']} rows, and of {trained['source']} with the workshop's labels: not of labels alone"]


def evaluations(records: Sequence[Record]) -> list[Record]:
    """A row an evaluation, with what was trained since the one before; a cell without figures stays one row."""
    rows = []
    for record in records:
        if not record.ok:
            rows.append(_only(named(record, epoch="all"), {}))
            continue
        held, before = record.series, 0
        logged = list(zip(held["train_loss_step"], held["train_loss"], strict=True))
        for place, epoch in enumerate(held["eval_epoch"]):
            step = held["eval_step"][place]
            losses = [loss for at, loss in logged if before < at <= step]
            values = {
                "step": step,
                "train_loss": fmean(losses) if losses else "none logged since the row before",
                "eval_loss": held["eval_loss"][place],
                "eval_runtime_s": held["eval_runtime_s"][place],
                "trained_per_s": _samples_per_s_between(record, before, step),
                "evaluated_per_s": held["eval_samples_per_s"][place],
            }
            rows.append(_only(named(record, epoch=round(epoch, 3)), values))
            before = step
    return rows


def answered(records: Sequence[Record]) -> list[Record]:
    """Two rows a cell: what it answered before and after training."""
    rows = []
    for record in records:
        for when in ("before", "after"):
            names = ("exact_match_percent", "f1_percent", "workshop_exact_match_percent", "workshop_f1_percent")
            values: dict[str, Any] = {}
            if record.ok:
                values = {name: record.values[f"{when}_{name}"] for name in names}
                values |= {name: held for name, held in record.values.items() if name.startswith("identical_")}
                values |= {"weights": record.values["weights"], "questions": record.factors["eval_size"]}
            rows.append(_only(named(record, training=when), values))
    return rows


def labelled(records: Sequence[Record]) -> list[Record]:
    """A row a way to label, counted on the rows that a setting trains on; all cells of it share these."""
    measured = {_sizes(record): record for record in reversed(records) if record.ok}
    shared = dict.fromkeys(_sizes(record) for record in records)
    first = [measured.get(sizes) or next(one for one in records if _sizes(one) == sizes) for sizes in shared]
    return [_labelled(record, way) for record in first for way in WAYS]


def _sizes(record: Record) -> tuple[int, int]:
    return record.factors["train_size"], record.factors["max_length"]


def _labelled(record: Record, way: str) -> Record:
    factors = {"train_size": record.factors["train_size"], "max_length": record.factors["max_length"]}
    return replace(
        _only(record, _counts(record, way) if record.ok else {}), factors={**factors, "way": way, "used_by": WAYS[way]}
    )


def _counts(record: Record, way: str) -> dict[str, Any]:
    counted = ("longest", "targets", "targets_read", "rows_with_marker", "rows_asked")
    told = ("vocabulary_asked", "vocabulary_reached", "tokenizer", "data_origin", "data_names")
    positions = record.values[f"{way}_rows"] * record.factors["max_length"]
    return {
        **{name: record.values[f"{way}_{name}"] for name in counted},
        **{name: record.values[name] for name in told},
        "filled_percent": 100 * record.values[f"{way}_tokens"] / positions,
    }


def _only(record: Record, values: dict[str, Any]) -> Record:
    """The record with these values alone."""
    return replace(record, values=values, samples={}, warmup={}, series={})
