"""Tables of the Polaris homework on larger tensors."""

from collections.abc import Mapping

from perfscribe.experiments.polaris import epoch_columns as columns
from perfscribe.experiments.polaris.tensor_dims.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

NOTES = (
    "Weights bf16: the whole model, gradients and Adam state too; bf16 beside fp32 weights: autocast. Peak memory is "
    "of torch's allocator in one untimed step; allocated: what remains after it.",
    "Throughput: samples of an epoch over its time, of the slowest epoch and the quickest, the first included.",
)
COLUMNS = [
    *t.factors(features="Features of the samples", device="Device", d_model="Embedding dim (d_model)"),
    *t.factors(dtype="Data type", weights="Weights", samples="Dataset size (samples)", epochs="Epochs"),
    t.value("parameters", "Parameters", exact=True),
    columns.TOTAL,
    *columns.LATER_EPOCHS,
    t.derived("lowest_per_s", "Throughput, lowest epoch (samples/s)", columns.lowest_per_s),
    t.derived("highest_per_s", "Highest (samples/s)", columns.highest_per_s),
    columns.PEAK_GIB,
    t.gib("allocated_after", "Allocated", "allocated"),
    t.timer("epoch_s"),
    *t.settings("batch"),
]


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table, one row per cell."""
    return [t.make(SHOWN.tables[0], "Training on larger tensors", records["tensor_dims"], COLUMNS, NOTES)]
