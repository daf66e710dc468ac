"""Tables and figure of BLOOM on one device without FSDP, and of what each way to label trains.

nine, evaluations, answered and losses are those of the small model, too (custom_single_node).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from perfscribe.experiments.baseline import drawings, rows
from perfscribe.experiments.baseline.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NINE_NOTES = (
    "MB: 2^20 bytes; peak: of the whole training, evaluation included.",
    "The workshop's labels: as its scripts train; where they trained fewer rows, the flag says so.",
)
EVALUATION_NOTES = ("Training loss: mean since the row before, dropout on; evaluation loss: mean over batches.",)
ANSWER_NOTES = (
    "Greedy answers against all references, by SQuAD's official definition; the workshop's way takes the first alone.",
    "With random weights scores say nothing about the trained model.",
)
RUN_NOTES = (
    "Steps: host clock with synchronise, first ones left out; Trainer's samples/s include the evaluations.",
    "Allocated at rest: after each optimizer step, without gradients and activations.",
)
LABEL_NOTES = (
    "Targets: labels that a loss of the next token counts; read besides: those that stand in the input at their own "
    "place.",
    "Asked after the marker: rows where the label after “Answer:” begins the answer.",
)
# Scores of each question's first reference as its own answer: in the CSV alone.
IDENTICAL = ("identical_exact_match_percent", "identical_f1_percent", "identical_workshop_f1_percent")


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The workshop's table, evaluations and answers of BLOOM; ways to label and trainings of both models."""
    cells = records["baseline"]
    own = rows.of_model(cells, "bloom")
    return [
        nine(TABLES[0], "BLOOM on one device, no FSDP", own),
        evaluations(TABLES[1], "BLOOM: losses at every evaluation", own),
        answered(TABLES[2], "BLOOM: answers before and after training", own),
        t.make(TABLES[3], "What each way to label trains", rows.labelled(cells), labels(), LABEL_NOTES),
        t.make(TABLES[4], "Trainings on one device", cells, runs(), RUN_NOTES),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """BLOOM's losses over epochs."""
    return [losses(FIGURES[0], tables[TABLES[1]])]


def losses(figure: str, table: Table) -> f.Figure:
    """Losses and rates over epochs."""
    return f.Figure(figure, drawings.CAPTION, partial(drawings.losses, rows=table.ok), (7.0, 4.6))


def _shared() -> list[t.Column]:
    return [t.factor("model_name", "Model"), t.factor("device", "Device"), t.factor("dtype", "Dtype")]


def nine(table: str, title: str, records: Sequence[Record]) -> Table:
    """The workshop's table of one training."""
    columns = [
        *_shared(),
        t.factor("metric", "Metric"),
        t.factor("where", "Where found"),
        t.value("answer", "Value"),
        t.value("source", "Value, the workshop's labels"),
    ]
    return t.make(table, title, rows.nine(records), columns, NINE_NOTES)


def evaluations(table: str, title: str, records: Sequence[Record]) -> Table:
    """Losses at every evaluation."""
    columns = [
        *_shared(),
        t.factor("labels", "Labels"),
        t.factor("epoch", "Epoch"),
        t.value("step", "Step", exact=True),
        t.value("train_loss", "Training loss"),
        t.value("eval_loss", "Evaluation loss"),
        t.value("eval_runtime_s", "Evaluation (s)"),
        t.value("trained_per_s", "Training samples/s"),
        t.value("evaluated_per_s", "Evaluation samples/s"),
    ]
    return t.make(table, title, rows.evaluations(records), columns, EVALUATION_NOTES)


def answered(table: str, title: str, records: Sequence[Record]) -> Table:
    """Exact match and F1 before and after training."""
    columns = [
        *_shared(),
        t.factor("labels", "Labels"),
        t.factor("training", "Training"),
        t.value("questions", "Questions", exact=True),
        t.value("exact_match_percent", "EM (%)"),
        t.value("f1_percent", "F1 (%)"),
        t.value("workshop_exact_match_percent", "EM, the workshop's way (%)"),
        t.value("workshop_f1_percent", "F1, the workshop's way (%)"),
        t.value("weights", "Weights before", exact=True),
        *(replace(t.value(name, name), kind="unshown") for name in IDENTICAL),
    ]
    return t.make(table, title, rows.answered(records), columns, ANSWER_NOTES)


def runs() -> list[t.Column]:
    """What a training was, its rates and memory."""
    return [
        t.Column("model_name", "Model", rows.model_name, kind="factor", exact=True),
        t.factor("device", "Device"),
        t.Column("dtype", "Dtype", rows.dtype, kind="factor", exact=True),
        t.factor("labels", "Labels"),
        t.factor("rows", "Rows"),
        t.value("parameters", "Parameters", exact=True),
        t.value("weights", "Weights", exact=True),
        t.value("wrapped_by", "Wrapped by", exact=True),
        t.value("steps", "Steps", exact=True),
        t.value("train_runtime_s", "Run time, Trainer's (s)"),
        t.median("step_s", "Step (s)"),
        t.iqr("step_s", "IQR (s)"),
        t.count("step_s"),
        t.value("train_samples_per_s", "Samples/s, Trainer's"),
        t.rate("samples_per_s", "Samples/s of the steps", rows.steps_samples_per_s, "step_s"),
        t.value("peak_allocated_bytes", "Peak allocated (GiB)", 1 / t.GIB, "peak_gib"),
        t.value("at_rest_bytes", "Allocated at rest (GiB)", 1 / t.GIB, "at_rest_gib"),
        t.value("gpu_used_bytes", "In use on the GPU, NVML (GiB)", 1 / t.GIB, "gpu_used_gib"),
        t.value("gpu_utilisation_percent", "GPU utilisation (%)"),
        t.value("mean_train_loss", "Training loss, mean"),
        t.timer("step_s"),
    ]


def labels() -> list[t.Column]:
    """What each way to label trains."""
    return [
        t.factor("way", "Labels"),
        t.factor("used_by", "Used by"),
        t.factor("train_size", "Rows"),
        t.factor("max_length", "Tokens of a row"),
        t.value("longest", "Longest row", exact=True),
        t.value("filled_percent", "Tokens among positions (%)"),
        t.value("targets", "Targets", exact=True),
        t.value("targets_read", "Of them read besides", exact=True),
        t.value("rows_with_marker", "Rows with “Answer:”", exact=True),
        t.value("rows_asked", "Asked after the marker", exact=True),
        t.value("vocabulary_asked", "Vocabulary asked", exact=True),
        t.value("vocabulary_reached", "reached", exact=True),
        t.value("tokenizer", "Tokenizer", exact=True),
        t.value("data_origin", "Data", exact=True),
        t.value("data_names", "of", exact=True),
    ]
