"""Tables of the Polaris homework on one device."""

from collections.abc import Mapping

from perfscribe.experiments.polaris import epoch_columns as columns
from perfscribe.experiments.polaris.single_gpu.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t

NOTE = (
    "Host clock, the device synchronised before and after each epoch; training time is the sum over all epochs. "
    "Homework's clock: read when the last step is queued."
)
COLUMNS = [
    *t.factors(device="Device", layers="Layers, encoder and decoder each", batches="Batches"),
    *t.factors(dtype="Dtype", samples="Samples", epochs="Epochs"),
    *t.exact(parameters="Parameters", steps_per_epoch="Steps an epoch"),
    columns.TOTAL,
    t.value("homework_clock_s", "Homework's clock (s)"),
    *columns.BEHIND,
    *columns.LATER_EPOCHS,
    columns.PEAK_GIB,
    t.timer("epoch_s"),
    *t.settings("batch"),
]


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table, one row per cell."""
    return [t.make(SHOWN.tables[0], "Training on one device", records["single_gpu"], COLUMNS, [NOTE])]
