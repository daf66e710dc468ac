"""Tables, figure and answer of imported_logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import references
from perfscribe import tables as t
from perfscribe.findings import Finding, find, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

TABLES = ("fsdp.imported_logs", "fsdp.imported_runs", "fsdp.imported_curves")
FIGURES = ("fsdp.imported_losses",)
NAME = "imported_logs"
SOURCE, SAMPLE = "fsdp-workshop-003", "log sample of the workshop's text"
# Published metrics of whole trainings → the names that records have.
WHOLE = {name: name for name in ("train_runtime_s", "train_samples_per_s", "train_steps_per_s")}
WHOLE["train_loss"] = "mean_train_loss"
NOT_TOLD = "not in this log"
MIB = 2**20
NEAR = 0.1  # epochs between a log's and the one that is asked for: the last is cut short where rows do not divide
NOTE = (
    "The workshop's nine figures, from its text's log sample (published) and from the logs that `./run import-log` was "
    "given (imported). Trainer's train_loss is the mean over all steps, not the last. An MB is 2^20 bytes."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's nine rows for each log; what its settings must have been; its curves."""
    logs = [*_published(), *records[NAME]]
    named = t.factor("log", "Log")
    nine = [named, t.factor("metric", "Metric"), t.factor("where", "Where found"), _value("value", "Value"), _origin()]
    settings = [named, t.factor("setting", "Setting"), _value("value", "Value"), _origin()]
    places = [_value("epoch", "Epoch"), _value("step", "Step")]
    curves = [named, t.factor("curve", "Curve"), *places, _value("value", "Value"), _origin()]
    return [
        t.make(TABLES[0], "Logs in the workshop's table", [row for log in logs for row in _nine(log)], nine, [NOTE]),
        t.make(
            TABLES[1],
            "What the logs' settings must have been",
            [row for log in logs for row in _settings(log)],
            settings,
        ),
        t.make(TABLES[2], "Curves of the logs", [row for log in logs for row in _points(log)], curves),
    ]


def _value(name: str, title: str) -> t.Column:
    return t.Column(name, title, lambda record: record.values.get(name, NOT_TOLD))


def _origin() -> t.Column:
    return t.Column("origin", "Origin", lambda record: record.origin)


def _published() -> list[Record]:
    """The workshop's log sample as a record, where it is among the published figures."""
    known = [ref for ref in references.load("fsdp") if ref.source == SOURCE and "epoch" in ref.factors]
    if not known:
        return []
    values: dict[str, Any] = {WHOLE[ref.metric]: ref.value for ref in known if ref.metric in WHOLE}
    evaluations = [ref for ref in known if ref.metric == "eval_loss"]
    rates = [ref.value for ref in known if ref.metric == "eval_samples_per_s"]
    epochs = [float(str(ref.factors["epoch"])) for ref in evaluations]
    steps = round(values["train_runtime_s"] * values["train_steps_per_s"])
    values |= {"epochs": max(epochs), "steps": steps, "steps_told_by": "steps/s x runtime"}
    values |= {"steps_per_epoch": steps / max(epochs), "eval_samples_per_s": rates[0]}
    values["rows_trained"] = values["train_runtime_s"] * values["train_samples_per_s"]
    series: dict[str, list[Any]] = {"eval_loss": [ref.value for ref in evaluations], "eval_epoch": list(epochs)}
    return [Record(NAME, {"log": SAMPLE}, "ok", "", "published", values=values, series=series)]


def _eval_loss(record: Record, epoch: int) -> Any:
    """The evaluation loss at an epoch; where the log tells no epochs, that of the evaluation with this number."""
    losses, epochs = record.series.get("eval_loss", []), record.series.get("eval_epoch", [])
    if not epochs:
        return losses[epoch - 1] if epoch <= len(losses) else NOT_TOLD
    near = [loss for loss, at in zip(losses, epochs, strict=True) if abs(at - epoch) <= NEAR]
    return near[0] if near else NOT_TOLD


def _of(name: str, unit: float = 1) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = record.values.get(name, NOT_TOLD)
        return found / unit if isinstance(found, (int, float)) else found

    return get


METRICS: tuple[tuple[str, str, Callable[[Record], Any]], ...] = (
    ("Train Loss (Final)", "train_loss of the summary", _of("mean_train_loss")),
    *(
        (f"Eval Loss (Epoch {epoch})", f"eval_loss at epoch {epoch}", partial(_eval_loss, epoch=epoch))
        for epoch in (1, 2, 3)
    ),
    ("Training Speed (samples/sec)", "train_samples_per_second", _of("train_samples_per_s")),
    ("Evaluation Speed (samples/sec)", "eval_samples_per_second", _of("eval_samples_per_s")),
    ("Steps per Epoch", "steps / epochs", _of("steps_per_epoch")),
    ("Memory Allocated (MB)", "avg_mem_alloc_MB", _of("at_rest_bytes", MIB)),
    ("GPU Utilization (%)", "avg_gpu_util_%", _of("gpu_utilisation_percent")),
)


SETTINGS = {
    "steps": "Optimizer steps",
    "steps_told_by": "Steps told by",
    "epochs": "Epochs",
    "rows_trained": "Rows trained",
    "rows_a_step": "Rows a step",
    "rows_an_epoch": "Rows an epoch",
    "train_runtime_s": "Runtime (s)",
}
SENTENCE = ("rows_trained", "steps", "rows_a_step", "rows_an_epoch")


def _row(record: Record, factors: Mapping[str, Any], values: Mapping[str, Any]) -> Record:
    return replace(record, factors={**record.factors, **factors}, values=dict(values), series={}, samples={})


def _nine(record: Record) -> list[Record]:
    return [_row(record, {"metric": title, "where": where}, {"value": get(record)}) for title, where, get in METRICS]


def _settings(record: Record) -> list[Record]:
    """Rows of a step and of an epoch follow from rates and run time: a log does not tell its settings."""
    values = dict(record.values)
    for name, over in (("rows_a_step", "steps"), ("rows_an_epoch", "epochs")):
        if values.get("rows_trained") and values.get(over):
            values[name] = values["rows_trained"] / values[over]
    return [_row(record, {"setting": title}, {"value": values.get(name, NOT_TOLD)}) for name, title in SETTINGS.items()]


def _points(record: Record) -> Iterator[Record]:
    """A row for each point of a curve."""
    for curve, name, place in (("train loss", "train_loss", "train_loss"), ("evaluation loss", "eval_loss", "eval")):
        figures = record.series.get(name, [])
        for number, figure in enumerate(figures):
            at = {kind: record.series.get(f"{place}_{kind}", []) for kind in ("epoch", "step")}
            told = {kind: places[number] for kind, places in at.items() if len(places) == len(figures)}
            yield _row(record, {"curve": curve}, {"value": figure, **told})


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What each log's settings were, and whether its evaluation loss fell."""
    runs, curves = tables[TABLES[1]].ok, tables[TABLES[2]].ok
    return [find("fsdp.imported_logs", TABLES[1:], lambda: _sentences(need(runs, 1, "logs"), curves))]


def _sentences(settings: pd.DataFrame, curves: pd.DataFrame) -> str:
    logs = settings.groupby("log", sort=False)
    return " ".join(
        _sentence(str(log), dict(zip(rows["setting"], rows["value"], strict=True)), curves[curves["log"] == log])
        for log, rows in logs
    )


def _sentence(log: str, told: Mapping[str, Any], curves: pd.DataFrame) -> str:
    parts = []
    rows, steps, a_step, an_epoch = (told[SETTINGS[name]] for name in SENTENCE)
    if all(isinstance(figure, (int, float)) for figure in (rows, steps, a_step, an_epoch)):
        each = f"{format_figure(a_step)} a step and {format_figure(an_epoch)} an epoch"
        parts.append(f"{rows:.0f} rows in {steps:.0f} steps, so {each}")
    losses = [float(value) for value in curves[curves["curve"] == "evaluation loss"]["value"]]
    if losses:
        shown = ", ".join(format_figure(loss) for loss in losses)
        rises = len(losses) > 1 and all(later > earlier for earlier, later in pairwise(losses))
        lowest = f"is lowest at {format_figure(min(losses))}"
        fate = "rises with each evaluation: the training over-fits" if rises else lowest
        parts.append(f"evaluation loss {shown}, which {fate}")
    return f"{log}: {'; '.join(parts) or 'its summary alone'}."


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Evaluation losses."""
    caption = "Evaluation loss over epochs, or over evaluations where a log tells no epochs, by log."
    return [f.Figure(FIGURES[0], caption, partial(_draw, rows=tables[TABLES[2]].ok))]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    axes = canvas.add_subplot()
    axes.set_xlabel("epoch")
    axes.set_ylabel("evaluation loss")
    chosen = rows[rows["curve"] == "evaluation loss"] if len(rows) else rows
    if chosen.empty:
        f.no_data(axes, "no log has an evaluation loss")
        return
    for number, (log, group) in enumerate(chosen.groupby("log", sort=False)):
        places = pd.to_numeric(group["epoch"], errors="coerce")
        xs = places if places.notna().all() else range(1, len(group) + 1)
        style = {"color": f.COLOURS[number % len(f.COLOURS)], "marker": f.MARKERS[number % len(f.MARKERS)]}
        axes.plot(list(xs), [float(value) for value in group["value"]], label=str(log), linewidth=1.2, **style)
    axes.legend(fontsize=f.LABEL_POINTS)
