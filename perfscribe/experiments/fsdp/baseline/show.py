"""Tables and figures of trainings on one device without FSDP: BLOOM and the workshop's small model, by labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pandas as pd

from perfscribe.experiments.fsdp.baseline.levels import SHOWN
from perfscribe.experiments.fsdp.trainings import numbers
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

MODELS = {"bloom": ("fsdp.baseline", "BLOOM"), "simple_gpt": ("fsdp.custom_single_node", "Custom model")}
WAYS = {  # kinds of labels, and who uses them
    "answer": "ours",
    "source": "the workshop's BLOOM scripts",
    "source_prompt": "its custom model's scripts",
}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return tables of records["baseline"]: losses and answers of each model; kinds of labels; trainings."""
    cells, by_model = records["baseline"], []
    first_round = [replace(cell, ranges={}, rounds=1) for cell in cells]  # of losses and answers, shown for it only
    for model, (table, name) in MODELS.items():
        rows = t.having(first_round, model=model)
        evaluated = t.expanded(rows, ["epoch"], _evaluations)
        by_model += [
            t.make(f"{table}_losses", f"{name}: losses at every evaluation", evaluated, LOSSES, LOSS_NOTES),
            t.make(f"{table}_answers", f"{name}: answers before and after training", answered(rows), ANSWERS, SCORED),
        ]
    return [
        *by_model,
        t.make("fsdp.labels", "What each way to label trains", labelled(first_round), LABELLED, LABEL_NOTES),
        t.make("fsdp.single_runs", "Trainings on one device", cells, RUNS, RUN_NOTES),
    ]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figures of losses over epochs."""
    return [f.Figure(name, CAPTION, f.of(tables[name].ok, _draw)) for name in SHOWN.figures]


def _model_name(record: Record) -> str:
    if record.factors["model"] == "bloom":
        return str(record.factors["model_name"])
    return "SimpleGPTModel {num_layers} x {hidden_size}, vocabulary {model_vocab_size}".format(**record.factors)


def _dtype(record: Record) -> str:
    return "fp16" if record.factors["fp16"] else "bf16" if record.factors["bf16"] else "fp32"


MODEL = [t.factor("model_name", "Model", _model_name), t.factor("device", "Device"), t.factor("dtype", "Dtype", _dtype)]

# --- losses -----------------------------------------------------------------------------------------------------

LOSSES = [
    *MODEL,
    *t.factors(labels="Labels", epoch="Epoch"),
    t.value("step", "Step", exact=True),
    *t.values(train_loss="Training loss", eval_loss="Evaluation loss", eval_runtime_s="Evaluation (s)"),
]
LOSS_NOTES = ("Training loss: mean since the row before; evaluation loss: mean over batches.",)
CAPTION = (
    "Training loss (mean since the evaluation before) and evaluation loss, with labels that train the "
    "answer and with the workshop's."
)
DRAWN = {"train_loss": ("training", "--"), "eval_loss": ("evaluation", "-")}
NAMES = {"answer": "answer", "source": "the workshop's labels"}


def _evaluations(record: Record) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield each evaluation by epoch, with the mean training loss since the one before."""
    series, last_step = record.series, 0
    for place, epoch in enumerate(series["eval_epoch"]):
        step = series["eval_step"][place]
        losses_by_step = zip(series["train_loss_step"], series["train_loss"], strict=True)
        losses = [loss for logged_step, loss in losses_by_step if last_step < logged_step <= step]
        yield (
            round(epoch, 3),
            {
                "step": step,
                "train_loss": fmean(losses) if losses else "none logged since the row before",
                "eval_loss": series["eval_loss"][place],
                "eval_runtime_s": series["eval_runtime_s"][place],
            },
        )
        last_step = step


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw losses by epoch; a colour for each kind of labels, dashed for training."""
    axes, rows = canvas.subplots(), f.main_device(rows)
    axes.set_xlabel("Epoch")
    axes.set_ylabel("Loss")
    for number, (labels, group) in enumerate(rows.groupby("labels", sort=False)):
        style = {"marker": f.MARKERS[number], "color": f.COLOURS[number], "markersize": 4, "linewidth": 1.2}
        for column, (kind, dashes) in DRAWN.items():
            points, label = numbers(group, column), f"{kind}, {NAMES[str(labels)]}"
            axes.plot(points["epoch"].astype(float), points[column], dashes, label=label, **style)
    axes.set_xticks(sorted(set(rows["epoch"].astype(float))))
    canvas.legend(fontsize=f.LABEL_POINTS, loc="outside upper center", ncols=2)


# --- answers ----------------------------------------------------------------------------------------------------

SCORES = {
    "exact_match_percent": "EM (%)",
    "f1_percent": "F1 (%)",
    "workshop_exact_match_percent": "EM, the workshop's way (%)",
    "workshop_f1_percent": "F1, the workshop's way (%)",
}
IDENTICAL = "identical_workshop_f1_percent"  # scores each question's first reference as its answer
ANSWERS = [
    *MODEL,
    *t.factors(labels="Labels", training="Training"),
    t.value("questions", "Questions", exact=True),
    *(t.value(name, title) for name, title in SCORES.items()),
    t.value("weights", "Initial weights", exact=True),
    *t.unshown(IDENTICAL),
]
SCORED = (
    "Greedy answers against all references, by SQuAD's official definition; the workshop's way takes the first alone.",
    "With random weights scores say nothing about the trained model.",
)


def answered(records: Iterable[Record]) -> list[Record]:
    """Return two rows per cell: scores before and after training."""
    rows = []
    for record in records:
        for when in ("before", "after"):
            values: dict[str, Any] = {}
            if record.ok:
                values = {name: record.values[f"{when}_{name}"] for name in SCORES}
                values |= {name: record.values[name] for name in (IDENTICAL, "weights")}
                values["questions"] = record.factors["eval_size"]
            rows.append(t.row_of(record, values, training=when))
    return rows


# --- ways to label, trainings -----------------------------------------------------------------------------------

LABELLED = [
    *t.factors(way="Labels", used_by="Used by", train_size="Rows", max_length="Tokens of a row"),
    *t.exact(targets="Targets", targets_read="Of them read besides", rows_with_marker="Rows with “Answer:”"),
    *t.exact(tokenizer="Tokenizer"),
    *t.unshown("data_origin"),
    t.derived("data_names", "Data from:", lambda record: record.values["data_names"].replace("; ", ", "), exact=True),
]
LABEL_NOTES = (
    "Targets: labels that a loss of the next token counts; read besides: those in the input at their own place.",
)


def labelled(records: Sequence[Record]) -> list[Record]:
    """Return a row per (train_size, max_length) and kind of labels, from the first ok record of each."""
    first = t.first_ok(records, lambda record: record.levels("train_size", "max_length"))
    ways = [(record, way) for record in first.values() for way in WAYS]
    return [t.row_of(record, t.of_variant(record, way).values, way=way, used_by=WAYS[way]) for record, way in ways]


def _all_steps_s(record: Record) -> float:
    """Return the time in optimizer steps, first ones included (s); median over rounds."""
    rounds = zip(record.samples["step_s"], record.warmup["step_s"], strict=True)
    return median(sum(first) + sum(later) for later, first in rounds)


def _eval_samples_per_s(record: Record) -> float | str:
    """Return the median over evaluations."""
    rates = record.series["eval_samples_per_s"]
    return median(rates) if rates else "no evaluation"


RUNS = [
    *MODEL,
    *t.factors(labels="Labels", rows="Rows"),
    *t.settings("batch_size", "grad_acc", "max_length", "num_epochs"),
    *t.exact(weights="Weights", steps_per_epoch="Steps an epoch"),
    t.value("train_runtime_s", "Run time, Trainer's (s)"),
    t.derived("all_steps_s", "All steps (s)", _all_steps_s),
    *t.timed("step_s", "Step (s)", "n"),
    t.derived("evaluation_s", "Evaluations (s)", lambda record: sum(record.series["eval_runtime_s"])),
    t.value("checkpoints_s", "Checkpoints (s)"),
    t.value("train_samples_per_s", "Samples/s, Trainer's"),
    t.derived("eval_samples_per_s", "Evaluation, samples/s", _eval_samples_per_s),
    t.gib("peak_allocated", "Peak allocated", "peak"),
    t.gib("at_rest", "Allocated at rest"),
    *t.values(gpu_utilisation_percent="GPU utilisation (%)", mean_train_loss="Training loss, mean"),
    t.timer("step_s"),
]
RUN_NOTES = (
    "Steps: host clock with synchronise, first ones left out; Trainer's samples/s include the evaluations.",
    "Labels: source: as the workshop's scripts train.",
    "Peak: of the whole training, evaluation included; on a CPU around one more batch.",
    "Allocated at rest: after each optimizer step, without gradients and activations.",
)
