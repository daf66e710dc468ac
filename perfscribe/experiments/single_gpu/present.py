"""Tables, figure and answers of the Polaris homework on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscribe import epoch_columns as columns
from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.single_gpu import answers
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("polaris.single_gpu", "polaris.single_gpu_epochs")
FIGURES = ("polaris.single_gpu_epochs",)
SEED = "polaris-homework-001"
# The homework's program on one rank.
HOMEWORK = {"d_model": columns.HOMEWORK_WIDTH, **columns.HOMEWORK, "dtype": "fp32"}
NOTES = (
    "Host clock, the device synchronised before and after each epoch; training time is the sum over all epochs, the "
    "first included, which each row pays anew. Homework's clock: read when the last step is queued. Peak memory: of "
    "torch's allocator in one untimed step. On a CPU one thread.",
    "Batches: per_sample, as the homework's loader collates them; per_batch, drawn at once from the host's memory; "
    "on_device, drawn from samples that lie on the device, and count in the peak. The loss takes the positions of the "
    "target for classes, as in the homework: a load, not a task.",
    "Write-up 001: Polaris, A100 40 GB, no warm-up, no synchronise before the clock is read; it stands beside rows of "
    "the same sizes, samples and epochs.",
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a cell; and every single epoch."""
    cells = records["single_gpu"]
    return [
        t.make(TABLES[0], "Training on one device", cells, _columns(), NOTES),
        t.make(TABLES[1], "Every epoch", _epochs(cells), _epoch_columns()),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("device", "Device"),
        t.factor("layers", "Layers, encoder and decoder each"),
        t.factor("batches", "Batches"),
    ]


def _columns() -> list[t.Column]:
    published = t.published("single_gpu", "training_s", SEED, "Training time, write-up 001 (s)", ("epochs",))
    return [
        *_factors(),
        t.factor("dtype", "Dtype"),
        t.factor("samples", "Samples"),
        t.factor("epochs", "Epochs"),
        t.value("parameters", "Parameters", exact=True),
        t.value("steps_per_epoch", "Steps an epoch", exact=True),
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
        *_factors(),
        t.factor("epoch", "Epoch"),
        t.value("time_s", "Time (s)"),
        t.value("samples_per_s", "Samples/s"),
        t.value("loss", "Mean loss"),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """How long it takes, what the first epoch costs, what the homework's clock and loader do to it."""
    rows = tables[TABLES[0]].ok
    return [
        find("polaris.single_gpu_time", TABLES[:1], lambda: answers.time(rows)),
        find("polaris.single_gpu_first_epoch", TABLES[:1], lambda: answers.first_epoch(rows)),
        find("polaris.single_gpu_clock", TABLES[:1], lambda: answers.clock(rows)),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Every epoch's time."""
    caption = (
        "Time of every epoch, the first one included, by host clock, the device synchronised before and after; one "
        "line a way to draw batches and a number of layers."
    )
    return [f.Figure(FIGURES[0], caption, lambda canvas: _draw(canvas, tables[TABLES[1]]), (7.0, 3.6), "epoch_s")]


def _draw(canvas: Any, table: Table) -> None:
    axes, rows = canvas.subplots(), columns.main_device(table.ok)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    by = f.varying(rows, ("batches", "layers"))
    f.lines(axes, rows, "epoch", "time_s", by, lambda levels: ", layers ".join(map(str, levels)))
    axes.set_xscale("linear")
    axes.set_xticks(sorted(set(rows["epoch"].astype(int))))
    axes.set_xlabel("Epoch")
    axes.set_ylabel("Time of an epoch (s)")
