"""The columns of the tables of training on one device, which the chapter's two experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscribe import tables as t
from perfscribe.experiments.baseline import rows
from perfscribe.records import Record
from perfscribe.tables import Table

NINE_NOTES = (
    "Where found: the name under which Trainer, and with it a tracker, tells the figure. MB: 2^20 bytes, as the "
    "workshop's callback counts them. Peak: of the whole training, evaluation included (on a CPU of one batch, after "
    "training). GPU utilisation: the share of NVML's last period in which any kernel was resident, sampled ten times "
    "a second.",
    "The workshop publishes no figures for this table. Its own labels: as its scripts train; BLOOM then on fewer rows.",
)
EVALUATION_NOTES = (
    "Training loss: mean of what was logged since the row before, dropout on. Evaluation loss: mean over batches.",
    "Training samples/s: rows of all steps since the row before, warm-up too, over the time of these steps.",
)
ANSWER_NOTES = (
    "Greedy, compared with all reference answers of a question by SQuAD's official definition; the workshop's way "
    "compares with the first alone, counts distinct words, and deletes articles before punctuation. Weights: with "
    "random ones, losses, EM and F1 say nothing about the trained model; times and memory hold.",
)
RUN_NOTES = (
    "Steps: host clock, the device synchronised after each; the first ones are warm-up. Trainer's samples/s are all "
    "rows over its run time, the evaluation of each epoch included; those of the steps are the rows of one over its "
    "median time. Wrapped by: read off the object that was trained.",
    "Allocated at rest: after each optimizer step, without gradients and activations; on a CPU before one more batch. "
    "On a CPU one thread.",
)
LABEL_NOTES = (
    "Longest row: as cut. Tokens among positions: the rest is padding, which is computed like them. Targets: labels "
    "that a loss of the next token counts. Read besides: those that also stand in the input at their own place, so "
    "that the model reads what it was to say. Asked after the marker: rows where the label after “Answer:” begins the "
    "answer.",
)

# Scores of each question's first reference as its own answer: in the CSV alone.
IDENTICAL = ("identical_exact_match_percent", "identical_f1_percent", "identical_workshop_f1_percent")


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


def answers(table: str, title: str, records: Sequence[Record]) -> Table:
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


def runs(table: str, title: str, records: Sequence[Record]) -> Table:
    """A row a training of either model: what it was, and its rates and memory."""
    own = [t.Column(name, title, get, kind="factor", exact=True) for name, title, get in OF_RUN]
    columns = [
        *own,
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
    return t.make(table, title, records, columns, RUN_NOTES)


OF_RUN = (
    ("model_name", "Model", rows.model_name),
    ("device", "Device", lambda record: record.factors["device"]),
    ("dtype", "Dtype", rows.dtype),
)


def labels(table: str, title: str, records: Sequence[Record]) -> Table:
    """What each way to label trains."""
    columns = [
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
    return t.make(table, title, rows.labelled(records), columns, LABEL_NOTES)
