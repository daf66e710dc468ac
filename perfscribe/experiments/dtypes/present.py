"""Tables, figures and answers of the Polaris homework's data types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from perfscribe import epoch_columns as columns
from perfscribe import epoch_memory, references
from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.dtypes import answers, drawings, ratios
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("polaris.dtypes", "polaris.dtypes_against_fp32", "polaris.dtypes_memory")
FIGURES = ("polaris.dtypes_by_length",)
SEED = "polaris-homework-001"
# Of write-up 001's script, which divides 2,048 samples among an unstated number of ranks.
HOMEWORK = {"layers": 6, "d_ff": 2048, "source_length": 1, "batch": 16, "epochs": 3}
SAMPLES = 2048
NOTES = (
    "Host clock, the device synchronised before and after each epoch; training time is the sum over all epochs, the "
    "first included. fp16 and bf16 are autocast with fp32 weights, fp16 with a loss scaler; fp32 is without TF32. Peak "
    "memory: of torch's allocator in one untimed step. Batches are drawn from the host's memory, a share of each epoch "
    "that no data type changes. On a CPU one thread.",
    "Write-up 001: Polaris, A100 40 GB, 3 epochs at batch 16, under DDP and torch's profiler; how many ranks shared "
    "its 2,048 samples is not stated, so its seconds are not ours. Its `failed` is a model whose d_model was left at "
    "512.",
)
AGAINST_NOTES = (
    "Ratios to fp32 of the same width and target length; time of a later epoch, the first left out. Final loss: mean "
    "over the last epoch, samples, their order and initial weights being the same. Skipped: steps in which fp16's "
    "scaled gradients overflowed.",
)
MEMORY_NOTES = (
    "Predicted: by counting what nn.Transformer, its loss and torch's Adam hold (perfscribe/counters), at the highest "
    "moment of a step. Larger difference: of what is held before the step (parameters, Adam state, workspaces) and "
    "what the step adds (batch, activations, gradients, temporaries).",
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """As asked; each dtype against fp32; memory beside its prediction."""
    cells = records["dtypes"]
    return [
        t.make(TABLES[0], "Training by data type, target length and width", cells, _columns(), NOTES),
        t.make(TABLES[1], "Each data type against fp32", cells, [*_factors(), *ratios.columns(cells)], AGAINST_NOTES),
        t.make(
            TABLES[2], "Peak memory, predicted and measured", cells, [*_factors(), *_memory_columns()], MEMORY_NOTES
        ),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("device", "Device"),
        t.factor("d_model", "Features (d_model)"),
        t.factor("target_length", "Target length"),
        t.factor("dtype", "Data type"),
    ]


def _published(metric: str, title: str) -> t.Column:
    """Write-up 001's figure for this width, target length and dtype."""
    known = references.load("dtypes")

    def get(record: Record) -> Any:
        levels = {**record.factors, "seq_len": record.factors["target_length"]}
        found = references.of_source(known, SEED, metric, levels) if record.has(**HOMEWORK) else None
        return "none" if found is None else found.shown

    return t.Column(f"{metric}_published", title, get, kind="published", exact=True)


def _why_unlike(record: Record) -> str:
    return (
        columns.RANKS_NOT_STATED if record.has(samples=SAMPLES) else f"of {SAMPLES} samples, {columns.RANKS_NOT_STATED}"
    )


def _columns() -> list[t.Column]:
    return [
        *_factors(),
        t.factor("samples", "Samples"),
        t.factor("epochs", "Epochs"),
        columns.total(),
        columns.unlike(_published("training_s", "Training time, write-up 001 (s)"), _why_unlike),
        *columns.later_epochs(),
        columns.peak_gib(),
        _published("peak_memory_gib", "Peak memory, write-up 001 (GiB)"),
        t.timer("epoch_s"),
    ]


def _memory_columns() -> list[t.Column]:
    groups = epoch_memory.GROUPS
    return [
        *epoch_memory.compared(),
        *(epoch_memory.always(name, title, epoch_memory.group_gib(name)) for name, (title, _) in groups.items()),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Which dtype is quicker, what memory it takes, what the loss says, the failed widths, the prediction."""
    asked, against, memory = (tables[name].ok for name in TABLES)
    return [
        find("polaris.dtypes_time", TABLES[:2], lambda: answers.time(asked, against)),
        find("polaris.dtypes_first", TABLES[:1], lambda: answers.first(asked)),
        find("polaris.dtypes_memory", TABLES[1:], lambda: answers.memory(against, memory)),
        find("polaris.dtypes_loss", TABLES[1:2], lambda: answers.loss(against)),
        find("polaris.dtypes_widths", TABLES[:1], lambda: answers.widths(tables[TABLES[0]].frame)),
        find("polaris.dtypes_prediction", TABLES[2:], lambda: epoch_memory.prediction(memory, _named)),
    ]


def _named(row: Any) -> str:
    return f"target length {row['target_length']}"


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Throughput and peak memory over target length."""
    table = tables[TABLES[0]]
    rate = (
        "Over target length, one panel a width, one line a data type. Above: samples a second, from the median time of "
        "the epochs after the first, host clock."
    )
    peak = "Below: peak memory of a training step."
    draw = f.stacked(
        partial(drawings.panels, table=table, y="samples_per_s", label="Samples/s"),
        partial(drawings.panels, table=table, y="peak_gib", label="Peak memory (GiB)"),
    )
    return [f.Figure(FIGURES[0], f"{rate} {peak}", draw, (7.0, 6.4), "epoch_s")]
