"""Tables of the Polaris homework on larger tensors."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe.experiments import epoch_columns as columns
from perfscribe.experiments.tensor_dims.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NOTE = (
    "Weights bf16: the whole model, gradients and Adam state too; bf16 beside fp32 weights: autocast. Peak memory is "
    "of torch's allocator in one untimed step; allocated: what remains after it."
)
SCALE_NOTE = "Throughput: samples of an epoch over its time, of the slowest epoch and the quickest."
FACTORS = (
    *t.factors(device="Device", d_model="Embedding dim (d_model)", dtype="Data type", weights="Weights"),
    *t.factors(samples="Dataset size (samples)"),
)
COLUMNS = [
    t.factor("features", "Features of the samples"),
    *FACTORS,
    t.factor("epochs", "Epochs"),
    t.value("parameters", "Parameters", exact=True),
    columns.TOTAL,
    *columns.BEHIND,
    *columns.LATER_EPOCHS,
    columns.PEAK_GIB,
    t.gib("allocated_after", "Allocated", "allocated"),
    t.timer("epoch_s"),
    *t.settings("batch"),
]
SCALE_COLUMNS = [
    *FACTORS,
    t.value("peak_allocated_bytes", "Peak memory (GB, 10^9)", 1e-9, "peak_gb"),
    t.derived("lowest_per_s", "Throughput, lowest epoch (samples/s)", columns.lowest_per_s),
    t.derived("highest_per_s", "Highest (samples/s)", columns.highest_per_s),
    t.derived("epochs_n", "n", lambda r: sum(map(len, columns.epochs_s(r))), exact=True),
    *t.settings("batch"),
]


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """As asked; the comparison of two tasks with its controls."""
    cells = records["tensor_dims"]
    alike = [record for record in cells if record.factors["features"] == record.factors["d_model"]]
    return [
        t.make(TABLES[0], "Training on larger tensors", cells, COLUMNS, [NOTE]),
        t.make(TABLES[1], "By width, dtype and number of samples", alike, SCALE_COLUMNS, [SCALE_NOTE]),
    ]
