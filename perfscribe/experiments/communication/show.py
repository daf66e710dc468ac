"""Tables and figure of communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.analytic.parameters import seq2seq_parameters
from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.experiments import epoch_columns
from perfscribe.experiments.communication import drawings
from perfscribe.experiments.communication import rows as r
from perfscribe.experiments.communication.levels import SHOWN
from perfscribe.instruments.statistics import format_figure
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import Column, Table

NAME = "communication"
TABLES, FIGURES = SHOWN.tables, SHOWN.figures

METRIC_NOTE = (
    "inter: 2 nodes x 1 rank, on one machine two processes joined by TCP over the loopback interface; intra: 1 node x "
    "2 ranks. Of rank 0, over the active steps of a profile, medians over interleaved turns; Impact is their ratio."
)
WAIT_NOTE = (
    "Transfer: for each collective the least time of any rank, an upper bound; waiting: the rest of that rank's time. "
    "All else: the rank's other kernels, copies and memsets, on a CPU its operators."
)
RATE_NOTE = (
    "Bytes of gradients over time, in each direction of the pair's link. Waiting counted: over rank 0's total, as a "
    "reader of the homework's table would divide."
)
TRAINING_NOTE = (
    "One rank under DistributedDataParallel, which then sends nothing. A profiled training holds one profile and the "
    "writing of its trace."
)
CAPTION = (
    "Communication of each rank by each tool, of the active steps of a profile: transfer, and on top of it waiting for "
    "the other rank. Medians over turns; the panels have scales of their own."
)

CELL = (t.factor("backend", "Backend"), t.factor("implementation", "Averaging"), t.factor("tool", "Tool"))
SOURCE, OTHER, UPSTREAM = "polaris-homework-000", "polaris-homework-001", "alcf-training-series"
PUBLISHED_METRICS = {
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


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; ranks; rates; trainings."""
    own = records[NAME]
    rated = r.bandwidth(own, records.get("all_reduce", []))
    return [
        t.make(TABLES[0], "Communication across nodes and within one", r.metrics(own), metrics(), [METRIC_NOTE]),
        t.make(TABLES[1], "Transfer and waiting on each rank", r.ranks(own), _ranks(), [WAIT_NOTE]),
        t.make(TABLES[2], "Effective bandwidth beside the links'", rated, _bandwidth(), [RATE_NOTE]),
        t.make(TABLES[3], "One rank, profiled and not", r.trainings(own), _trainings(), [TRAINING_NOTE]),
    ]


def _with_spread(name: str, title: str, without: str = "") -> Column:
    """A figure that is printed as finely as its spread allows. without: what the CSV says where it has none."""

    def spread(record: Record) -> Any:
        return record.values.get(f"{name}_spread", without) if without else record.values[f"{name}_spread"]

    return Column(name, title, lambda record: record.values[name], spread=f"{name}_spread", spread_get=spread)


def _published(name: str, title: str, get: Callable[[Record], Any]) -> Column:
    return Column(name, title, get, kind="published", exact=True)


def metrics() -> list[Column]:
    """The homework's table."""
    return [
        *CELL,
        t.factor("metric", "Metric"),
        _with_spread(r.INTER, "inter"),
        _with_spread(r.INTRA, "intra"),
        _with_spread("impact", "Impact (×)", "no interval"),
        t.value("impact_interval", "95 % interval", exact=True),
        t.value("impact_verdict", "Across nodes it is", exact=True),
        t.value("turns", "Turns", exact=True),
        *(
            _published(f"published_{one}", f"homework 000, {one}", partial(_homework, placement=one))
            for one in (r.INTER, r.INTRA)
        ),
        _published("published_impact", "homework 000, Impact (×)", _homework_impact),
    ]


def _ranks() -> list[Column]:
    """Each rank's own times."""

    def slowest(record: Record) -> Any:
        within = record.factors["placement"] == r.INTRA
        return figure("slowest_all_reduce_ms", source=UPSTREAM) if within else NONE

    return [
        *CELL,
        t.factor("placement", "Placement"),
        t.factor("nodes", "Nodes"),
        t.factor("ranks_per_node", "Ranks a node"),
        t.factor("link", "Joined by"),
        t.factor("rank", "Rank"),
        t.median("total_ms", "Total (ms)"),
        t.iqr("total_ms", "IQR (ms)"),
        t.median("transfer_ms", "Transfer (ms)"),
        t.median("wait_ms", "Waiting (ms)"),
        _with_spread("wait_percent", "Waiting, of the total, over all turns (%)", "one turn"),
        t.value("wait_percent_spread", "IQR of its turns (points)"),
        t.median("slowest_ms", "Slowest call (ms)"),
        _published("published_slowest_ms", "ALCF, slowest (ms)", slowest),
        t.median("compute_ms", "All else (ms)"),
        t.median("step_ms", "Step (ms)"),
        t.value("calls", "Calls", exact=True),
        t.count("total_ms"),
        t.timer("total_ms"),
    ]


def _bandwidth() -> list[Column]:
    """Rates, of training and of plain collectives."""

    def of(record: Record, get: Callable[[str], float]) -> Any:
        placement = record.factors["placement"]
        return float(format_figure(get(placement))) if placement in r.PLACEMENTS else NONE

    quoted, implied = partial(of, get=partial(figure, "link_bandwidth_gb_per_s")), partial(of, get=_rate_gb_per_s)
    return [
        t.factor("backend", "Backend"),
        t.factor("what", "What"),
        t.factor("placement", "Placement"),
        t.factor("link", "Joined by"),
        t.value("message_mb", "Mean message (MB)"),
        _with_spread("time_ms", "Mean transfer (ms)", "no time"),
        _with_spread("gb_per_s", "Each way (GB/s)", "no rate"),
        _with_spread("with_waiting_gb_per_s", "Waiting counted (GB/s)", "one figure"),
        t.value("rated_gb_per_s", "Rated, each way (GB/s)"),
        t.value("rated_by", "Rated by"),
        _with_spread("rated_percent", "Of the rated (%)", "no share"),
        _published("published_rated_gb_per_s", "homework 000, quotes (GB/s)", quoted),
        _published("published_gb_per_s", "homework 000, its times imply (GB/s)", implied),
    ]


def _trainings() -> list[Column]:
    """Whole trainings of one rank."""
    return [
        t.factor("backend", "Backend"),
        t.factor("epochs", "Epochs"),
        t.factor("training_steps", "Steps"),
        t.factor("profiled", "Profiled"),
        t.median("train_s", "Training (s)"),
        t.iqr("train_s", "IQR (s)"),
        _with_spread("longer_s", "Longer by (s)", "itself"),
        t.value("epoch_s", "An epoch of it (s)"),
        _published("published_epoch_s", "homework 001, of ten epochs one (s)", _homework_epoch),
        t.count("train_s"),
        t.timer("train_s"),
    ]


def figure(metric: str, placement: str = "", source: str = SOURCE) -> float:
    """A published figure. KeyError: there is none."""
    nodes, ranks_per_node = r.PLACEMENTS.get(placement, (0, 0))
    levels: dict[str, Any] = {"nodes": nodes, "ranks_per_node": ranks_per_node} if placement else {}
    for one in references.find(references.load(NAME), metric, **levels):
        if one.source == source and one.value is not None:
            return one.value
    raise KeyError(f"{metric} {placement} of {source}")


def _homework(record: Record, placement: str) -> Any:
    """The homework's answer beside each figure; calls as its total and mean imply them."""
    metric = record.factors["metric"]
    if metric == r.METRICS[r.CALLS]:
        implied = figure("total_communication_ms", placement) / figure("mean_communication_ms", placement)
        return f"{format_figure(implied)} (total / mean)"
    return figure(PUBLISHED_METRICS[metric], placement) if metric in PUBLISHED_METRICS else NONE


def _homework_impact(record: Record) -> Any:
    return figure("total_communication_ratio") if record.factors["metric"] == r.METRICS[r.TOTAL] else NONE


def _rate_gb_per_s(placement: str) -> float:
    """The fp32 gradients of the profiled steps over the published total, if the model was the homework's own."""
    sent = STEPS * 4 * seq2seq_parameters(Seq2SeqShape())
    return sent / (figure("total_communication_ms", placement) * 1e-3) / 1e9


def _homework_epoch(record: Record) -> Any:
    """An epoch of homework 001's ten, beside ours of the same model and samples alone."""
    name = record.factors["profiled"]
    if name not in (r.TRAININGS["plain"], r.TRAININGS["first_profiled"]):
        return NONE
    steps = record.factors["training_steps"] / record.factors["epochs"]
    if steps != STEPS_OF_EPOCH or not record.has(**HOMEWORK):
        return ANOTHER_WORKLOAD
    if name == r.TRAININGS["first_profiled"]:
        return float(format_figure(figure("profiled_training_s", source=OTHER) / EPOCHS))
    known = references.find(references.load("single_gpu"), "training_s", world_size=1, epochs=EPOCHS)
    (plain,) = (one.value for one in known if one.source == OTHER and one.value is not None)
    return float(format_figure(plain / EPOCHS))


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Transfer and waiting by rank."""
    draw = partial(drawings.waiting, rows=tables["polaris.communication_ranks"].ok)
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 3.4), sample="total_ms")]
