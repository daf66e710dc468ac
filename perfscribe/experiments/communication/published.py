"""What the homework's answers say of communication, and what follows from their figures."""

from __future__ import annotations

from typing import Any

from perfscribe import epoch_columns, references
from perfscribe import tables as t
from perfscribe.counters.parameters import seq2seq_parameters
from perfscribe.experiments.communication import rows as r
from perfscribe.experiments.communication import single
from perfscribe.models.shapes import Seq2SeqShape
from perfscribe.records import Record
from perfscribe.statistics import format_figure

NAME = "communication"
SOURCE, OTHER, UPSTREAM = "polaris-homework-000", "polaris-homework-001", "alcf-training-series"
METRICS = {
    r.METRICS[r.TOTAL]: "total_communication_ms",
    r.METRICS[r.SHARE]: "communication_share_percent",
    r.METRICS[r.MEAN]: "mean_communication_ms",
}
NONE = "none"
ANOTHER_WORKLOAD = "another workload"
STEPS = 2  # active steps of the homework's profile
EPOCHS, STEPS_OF_EPOCH = 10, 64  # of its training: 2,048 samples in batches of 32
HOMEWORK = {
    "features": epoch_columns.HOMEWORK_WIDTH,
    **epoch_columns.homework("layers", "d_ff", "source_length", "target_length", "batch"),
    "dtype": "fp32",
}


def figure(metric: str, placement: str = "", source: str = SOURCE) -> float:
    """A published figure. KeyError: there is none."""
    nodes, ranks_per_node = r.PLACEMENTS.get(placement, (0, 0))
    levels: dict[str, Any] = {"nodes": nodes, "ranks_per_node": ranks_per_node} if placement else {}
    for one in references.find(references.load(NAME), metric, **levels):
        if one.source == source and one.value is not None:
            return one.value
    raise KeyError(f"{metric} {placement} of {source}")


def calls(placement: str) -> float:
    """Launches that the published total and mean imply."""
    return figure("total_communication_ms", placement) / figure("mean_communication_ms", placement)


def gradient_bytes() -> int:
    """fp32 gradients of the homework's model."""
    return 4 * seq2seq_parameters(Seq2SeqShape())


def rate_gb_per_s(placement: str) -> float:
    """The gradients of the profiled steps over the published total, if the model was the homework's own."""
    return STEPS * gradient_bytes() / (figure("total_communication_ms", placement) * 1e-3) / 1e9


def columns() -> list[t.Column]:
    """The homework's answer beside each figure."""

    def beside(placement: str) -> t.Column:
        def get(record: Record) -> Any:
            metric = record.factors["metric"]
            if metric == r.METRICS[r.CALLS]:
                return f"{format_figure(calls(placement))} (total / mean)"
            return figure(METRICS[metric], placement) if metric in METRICS else NONE

        return t.Column(f"published_{placement}", f"homework 000, {placement}", get, kind="published", exact=True)

    def ratio(record: Record) -> Any:
        return figure("total_communication_ratio") if record.factors["metric"] == r.METRICS[r.TOTAL] else NONE

    impact = t.Column("published_impact", "homework 000, Impact (×)", ratio, kind="published", exact=True)
    return [beside(r.INTER), beside(r.INTRA), impact]


def slowest() -> t.Column:
    """Upstream's slowest all-reduce, of two ranks of a node."""

    def get(record: Record) -> Any:
        within = record.factors["placement"] == r.INTRA
        return figure("slowest_all_reduce_ms", source=UPSTREAM) if within else NONE

    return t.Column("published_slowest_ms", "ALCF, slowest (ms)", get, kind="published", exact=True)


def rates() -> list[t.Column]:
    """The link that the homework's answer quotes, and the rate that its own times imply."""

    def of(record: Record, get: Any) -> Any:
        placement = record.factors["placement"]
        return float(format_figure(get(placement))) if placement in r.PLACEMENTS else NONE

    quoted = t.Column(
        "published_rated_gb_per_s",
        "homework 000, quotes (GB/s)",
        lambda record: of(record, lambda place: figure("link_bandwidth_gb_per_s", place)),
        kind="published",
        exact=True,
    )
    implied = t.Column(
        "published_gb_per_s",
        "homework 000, its times imply (GB/s)",
        lambda record: of(record, rate_gb_per_s),
        kind="published",
        exact=True,
    )
    return [quoted, implied]


def training_s(profiled: bool) -> float:
    """Homework 001's training of ten epochs on one GPU, profiled or not."""
    if profiled:
        return figure("profiled_training_s", source=OTHER)
    known = references.find(references.load("single_gpu"), "training_s", world_size=1, epochs=10)
    (found,) = (one.value for one in known if one.source == OTHER and one.value is not None)
    return found


def trained() -> t.Column:
    """An epoch of homework 001's ten, beside ours of the same model and samples alone."""

    def get(record: Record) -> Any:
        profiled = {single.TRAININGS["plain"]: False, single.TRAININGS["first_profiled"]: True}
        name = record.factors["profiled"]
        if name not in profiled:
            return NONE
        steps = record.factors["training_steps"] / record.factors["epochs"]
        if steps != STEPS_OF_EPOCH or not record.has(**HOMEWORK):
            return ANOTHER_WORKLOAD
        return float(format_figure(training_s(profiled[name]) / EPOCHS))

    return t.Column("published_epoch_s", "homework 001, of ten epochs one (s)", get, kind="published", exact=True)
