"""Tables of the Polaris homework on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfscribe.experiments import epoch_columns as columns
from perfscribe.experiments.single_gpu.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES = SHOWN.tables
SEED = "polaris-homework-001"
# The homework's program on one rank.
HOMEWORK = {"d_model": columns.HOMEWORK_WIDTH, **columns.HOMEWORK, "dtype": "fp32"}
NOTE = (
    "Host clock, the device synchronised before and after each epoch; training time is the sum over all epochs. "
    "Homework's clock: read when the last step is queued."
)
FACTORS = (*t.factors(device="Device", layers="Layers, encoder and decoder each", batches="Batches"),)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a cell; and every single epoch."""
    cells = records["single_gpu"]
    return [
        t.make(TABLES[0], "Training on one device", cells, _columns(), [NOTE]),
        t.make(TABLES[1], "Every epoch", _epochs(cells), _epoch_columns()),
    ]


def _columns() -> list[t.Column]:
    published = t.published("single_gpu", "training_s", SEED, "Training time, write-up 001 (s)", ("epochs",))
    return [
        *FACTORS,
        *t.factors(dtype="Dtype", samples="Samples", epochs="Epochs"),
        *t.exact(parameters="Parameters", steps_per_epoch="Steps an epoch"),
        columns.total(),
        columns.against(HOMEWORK, published),
        t.value("homework_clock_s", "Homework's clock (s)"),
        *columns.later_epochs(),
        columns.peak_gib(),
        t.timer("epoch_s"),
    ]


def _epochs(cells: Sequence[Record]) -> list[Record]:
    """One record an epoch of the first round; a cell without figures stays one row."""
    rows: list[Record] = []
    for record in cells:
        if not record.ok:
            rows.append(replace(record, factors={**record.factors, "epoch": "all"}, samples={}, warmup={}))
            continue
        times = columns.epochs_s(record)[0]
        for number, (time_s, loss) in enumerate(zip(times, record.series["loss"], strict=True), start=1):
            rate = record.factors["samples"] / time_s
            values = {"time_s": time_s, "samples_per_s": rate, "loss": loss}
            factors = {**record.factors, "epoch": number}
            rows.append(replace(record, factors=factors, samples={}, warmup={}, values=values))
    return rows


def _epoch_columns() -> list[t.Column]:
    return [
        *FACTORS,
        t.factor("epoch", "Epoch"),
        *t.values(time_s="Time (s)", samples_per_s="Samples/s", loss="Mean loss"),
    ]
