"""Cells that a test measures itself: the data that they read, and their records as a worker would make them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import tokens
from perfscribe.data.generate import generate
from perfscribe.records.records import Record
from perfscribe.run.child import as_answer


def with_tokens(folder: Path, batch: int, length: int) -> Path:
    """The folder, with the token batches that cells of this batch and length read."""
    file = folder / tokens.dataset_name(batch, length) / tokens.FILE
    file.parent.mkdir(parents=True)
    np.save(file, tokens.arrays(16, length + 1, 10_000, 0)["tokens"])
    return folder


def generated(datasets: dict, folder: Path) -> Path:
    """The folder, with these data sets."""
    for name, dataset in datasets.items():
        plan = json.loads(json.dumps({"dataset": name, "formats": [], **dataset}))  # as the planner's file gives it
        generate(plan, folder / name)
    return folder


def cell_with(cells: list[Cell], folder: Path | str = "", **wanted: object) -> Cell:
    """The cell that has these levels, which reads the folder's data sets."""
    (cell,) = [cell for cell in cells if all(cell[name] == level for name, level in wanted.items())]
    return replace(cell, data_folder=str(folder))


def as_record(experiment: str, cell: Cell, found: Measurement) -> Record:
    """The record of one round, with what JSON leaves of the measurement."""
    answer = json.loads(json.dumps(as_answer(found), allow_nan=False))
    samples = {name: [values] for name, values in answer["samples"].items()}
    kept = {name: answer[name] for name in ("values", "series", "timers")}
    return Record(experiment, dict(cell.factors), "ok", "", "measured", samples, **kept)
