"""Tables of the Polaris homework on larger tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.experiments import epoch_columns as columns
from perfscribe.experiments.tensor_dims.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES = SHOWN.tables
TABULATED, TRIED = "polaris-homework-000", "polaris-homework-001"
# nn.Transformer's own depth and inner width, which the write-ups leave as they are.
HOMEWORK = columns.homework("layers", "d_ff", "source_length", "target_length")
NOTE = (
    "Weights bf16: the whole model, gradients and Adam state too; bf16 beside fp32 weights: autocast. Peak memory is "
    "of torch's allocator in one untimed step; allocated: what remains after it."
)
SCALE_NOTE = (
    "Throughput: samples of an epoch over its time, of the slowest epoch and the quickest. Write-up 000's two rows "
    "differ in width, dtype and number of samples at once; the others here differ in one of them."
)
FACTORS = (
    *t.factors(device="Device", d_model="Embedding dim (d_model)", dtype="Data type", weights="Weights"),
    *t.factors(samples="Dataset size (samples)"),
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """As asked; write-up 000's table with its controls."""
    cells = records["tensor_dims"]
    alike = [record for record in cells if record.factors["features"] == record.factors["d_model"]]
    return [
        t.make(TABLES[0], "Training on larger tensors", cells, _columns(), [NOTE]),
        t.make(TABLES[1], "Width, dtype and number of samples told apart", alike, _scale_columns(), [SCALE_NOTE]),
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

    return t.quoted(f"{metric}_published", title, get)


def _columns() -> list[t.Column]:
    def tried(metric: str, title: str) -> t.Column:
        return _published(["tensor_dims"], metric, TRIED, title, "features", dtype=False)

    time = tried("training_s", "Training time, write-up 001 (s)")
    return [
        t.factor("features", "Features of the samples"),
        *FACTORS,
        t.factor("epochs", "Epochs"),
        t.value("parameters", "Parameters", exact=True),
        columns.total(),
        columns.unlike(time, lambda record: columns.RANKS_OF_001),
        *columns.behind(),
        *columns.later_epochs(),
        columns.peak_gib(),
        t.value("allocated_after_bytes", "Allocated (GiB)", 1 / t.GIB, "allocated_gib"),
        tried("memory_allocated_gib", "Allocated, write-up 001 (GiB)"),
        t.timer("epoch_s"),
    ]


def _scale_columns() -> list[t.Column]:
    def tabulated(metric: str, title: str) -> t.Column:
        return _published(["tensor_dims", "dtypes"], metric, TABULATED, title, "d_model", dtype=True)

    return [
        *FACTORS,
        columns.peak_gb(),
        tabulated("peak_memory_gb", "Peak memory, write-up 000 (GB)"),
        t.derived("lowest_per_s", "Throughput, lowest epoch (samples/s)", columns.lowest_per_s),
        t.derived("highest_per_s", "Highest (samples/s)", columns.highest_per_s),
        tabulated("throughput_min_samples_per_s", "Lowest, write-up 000 (samples/s)"),
        tabulated("throughput_max_samples_per_s", "Highest, write-up 000 (samples/s)"),
        t.derived("epochs_n", "n", lambda r: sum(map(len, columns.epochs_s(r))), exact=True),
    ]
