"""Tables, figures and answers of the Polaris homework on larger tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from perfscribe import epoch_columns as columns
from perfscribe import epoch_memory, references
from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.epoch_memory import always
from perfscribe.experiments.tensor_dims import answers, drawings
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import GIB, Table

TABLES = ("polaris.tensor_dims", "polaris.tensor_dims_scale", "polaris.tensor_dims_memory")
FIGURES = ("polaris.tensor_dims_bars",)
TABULATED, TRIED = "polaris-homework-000", "polaris-homework-001"
# nn.Transformer's own depth and inner width, which the write-ups leave as they are.
HOMEWORK = columns.homework("layers", "d_ff", "source_length", "target_length")
NOTES = (
    "Host clock, the device synchronised before and after each epoch; training time is the sum over all epochs. Peak "
    "memory: of torch's allocator in one untimed step; allocated: what remains after it. Weights bf16: the whole "
    "model, gradients and Adam state too; bf16 beside fp32 weights: autocast. Batches are drawn from the host's "
    "memory, where the samples do not count in the peak of a GPU. On a CPU one thread.",
    "Write-up 001: Polaris, A100 40 GB, 5 epochs; allocated memory at the end, under DDP, where each rank trains its "
    "share of the samples: how many ranks there were is not stated, so its seconds are not ours. Its `failed` is a "
    "model whose d_model was left at 512.",
)
SCALE_NOTES = (
    "Throughput: samples of an epoch over its time, the slowest epoch (mostly the first) and the quickest. Peak memory "
    "in 10^9 bytes; write-up 000 does not say whether its GB are 10^9 or 2^30 bytes. Its two rows differ in width, "
    "dtype and number of samples at once; the others here differ in one of them.",
)
MEMORY_NOTES = (
    "Predicted: by counting what nn.Transformer, its loss and torch's Adam hold (perfscribe/counters), at the highest "
    "moment of a step; the parts add up to it. On the CPU all samples count. Larger difference: of what is held before "
    "the step (parameters, Adam state, workspaces) and what the step adds (batch, activations, gradients, "
    "temporaries). The prediction with one more copy of the gradients is what DDP's buckets would make it.",
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """As asked; write-up 000's table with its controls; memory beside its prediction."""
    cells = records["tensor_dims"]
    alike = [record for record in cells if record.factors["features"] == record.factors["d_model"]]
    return [
        t.make(TABLES[0], "Training on larger tensors", cells, _columns(), NOTES),
        t.make(TABLES[1], "Width, dtype and number of samples told apart", alike, _scale_columns(), SCALE_NOTES),
        t.make(TABLES[2], "Peak memory, predicted and measured", alike, _memory_columns(), MEMORY_NOTES),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("device", "Device"),
        t.factor("d_model", "Embedding dim (d_model)"),
        t.factor("dtype", "Data type"),
        t.factor("weights", "Weights"),
        t.factor("samples", "Dataset size (samples)"),
    ]


def _published(experiments: Sequence[str], metric: str, source: str, title: str, width: str, dtype: bool) -> t.Column:
    """A write-up's figure beside rows of its model; width: the factor that it means by its dimension."""
    known = [reference for name in experiments for reference in references.load(name)]

    def get(record: Record) -> Any:
        f = record.factors
        if not record.has(**HOMEWORK) or (f["dtype"] != f["weights"] if dtype else f["dtype"] != "fp32"):
            return "none"
        levels = {"d_model": f[width], "samples": f["samples"]} | ({"dtype": f["dtype"]} if dtype else {})
        found = [ref for ref in references.find(known, metric, **levels) if ref.source == source]
        return found[0].shown if found else "none"

    return t.Column(f"{metric}_published", title, get, kind="published", exact=True)


def _columns() -> list[t.Column]:
    def tried(metric: str, title: str) -> t.Column:
        return _published(["tensor_dims"], metric, TRIED, title, "features", dtype=False)

    time = tried("training_s", "Training time, write-up 001 (s)")
    return [
        t.factor("features", "Features of the samples"),
        *_factors(),
        t.factor("epochs", "Epochs"),
        t.value("parameters", "Parameters", exact=True),
        columns.total(),
        columns.unlike(time, lambda record: columns.RANKS_NOT_STATED),
        *columns.later_epochs(),
        columns.peak_gib(),
        t.value("allocated_after_bytes", "Allocated (GiB)", 1 / GIB, "allocated_gib"),
        tried("memory_allocated_gib", "Allocated, write-up 001 (GiB)"),
        t.timer("epoch_s"),
    ]


def _scale_columns() -> list[t.Column]:
    def tabulated(metric: str, title: str) -> t.Column:
        return _published(["tensor_dims", "dtypes"], metric, TABULATED, title, "d_model", dtype=True)

    return [
        *_factors(),
        columns.peak_gb(),
        tabulated("peak_memory_gb", "Peak memory, write-up 000 (GB)"),
        t.derived("lowest_per_s", "Throughput, lowest epoch (samples/s)", columns.lowest_per_s),
        t.derived("highest_per_s", "Highest (samples/s)", columns.highest_per_s),
        tabulated("throughput_min_samples_per_s", "Lowest, write-up 000 (samples/s)"),
        tabulated("throughput_max_samples_per_s", "Highest, write-up 000 (samples/s)"),
        t.derived("epochs_n", "n", lambda r: sum(map(len, columns.epochs_s(r))), exact=True),
    ]


def _memory_columns() -> list[t.Column]:
    return [
        *_factors(),
        *epoch_memory.compared(),
        *(always(name, title, epoch_memory.group_gib(name)) for name, (title, _) in epoch_memory.GROUPS.items()),
        always("predicted_gb", "Predicted (GB, 10^9)", epoch_memory.peak(columns.GB)),
        always("with_ddp_gib", "Predicted with DDP's gradient copy (GiB)", epoch_memory.with_ddp_gib),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What a width that does not match gives, what each factor does, whether fp32 fits, how good the prediction is."""
    asked, scale, memory = (tables[name].frame for name in TABLES)
    judged = tables[TABLES[2]].ok
    return [
        find("polaris.tensor_dims_error", TABLES[:1], lambda: answers.error(asked)),
        find("polaris.tensor_dims_controls", TABLES[:2], lambda: answers.controls(tables[TABLES[1]].ok, asked)),
        find("polaris.tensor_dims_limit", TABLES[1:], lambda: answers.limit(memory, scale)),
        find("polaris.tensor_dims_prediction", TABLES[2:], lambda: epoch_memory.prediction(judged, _named)),
    ]


def _named(row: Any) -> str:
    return f"weights {row['weights']}, {row['samples']} samples"


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Predicted memory by kind with the measured peak, and throughput from the slowest to the quickest epoch."""
    memory, scale = tables[TABLES[2]], tables[TABLES[1]]
    stacked = (
        "By width, data type of weights and products, and number of samples. Above: peak memory of a training step, "
        "predicted, by kind, and the measured peak as a diamond."
    )
    ranges = "Below: throughput from the slowest epoch (mostly the first) to the quickest, host clock."
    draw = f.stacked(
        partial(drawings.memory, table=memory), partial(drawings.throughput, table=scale), heights=(4, 3.4)
    )
    return [f.Figure(FIGURES[0], f"{stacked} {ranges}", draw, (7.0, 7.4), "epoch_s")]
