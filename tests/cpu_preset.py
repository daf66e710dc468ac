"""Records of the cpu preset's cells, for what the tables make of them on a machine that has nothing special.

Experiments with cells of several processes are measured: which rows they give depends on how many processes, sizes and
implementations a cell has, and the ranks start once for many of them. Of the others, which last for minutes, the
figures of cells of the tiny preset stand in.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import unmeasured

from perfscribe import config
from perfscribe.base import files
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.data.generate import generate
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import measure_module
from perfscribe.records.records import Record
from perfscribe.run import child

PRESET = "cpu"
BY_SIZE = {"baseline"}
ALWAYS_THERE = {"hdf5", "transformers"}  # packages that the project installs


def planned(experiment: str) -> list[tuple[Cell, Record]]:
    """The preset's cells, and their records without figures: ok where nothing is required that a machine may lack."""
    cells = plan.planned_cells(unmeasured.raw_config(), experiment, PRESET)
    ends = ["skipped" if cell.skip else "unsupported" if _lacking(cell) else "ok" for cell in cells]
    return [
        (cell, Record(experiment, dict(cell.factors), end, "", "measured"))
        for cell, end in zip(cells, ends, strict=True)
    ]


def _lacking(cell: Cell) -> set[str]:
    """What a machine may lack of what the cell needs; a self-test before it is none of that."""
    return {name for name in cell.requires if not name.startswith("preflight:")} - ALWAYS_THERE


def is_measured(experiment: str) -> bool:
    """Whether some of its cells name a number of processes, or its tables hold figures against the cells' sizes."""
    return experiment in BY_SIZE or any("world_size" in cell.factors for cell, _ in planned(experiment))


def measured(experiment: str, folder: Path) -> list[Record]:
    """The cells measured here, one after the other; folder: for their data sets."""
    cells = planned(experiment)
    module = importlib.import_module(measure_module(experiment))
    _make_data(module, experiment, {name for cell, record in cells if record.ok for name in cell.data}, folder)
    return [_measured(module, cell, record, folder) if record.ok else record for cell, record in cells]


def _make_data(module: Any, experiment: str, wanted: Iterable[str], folder: Path) -> None:
    if not wanted:
        return
    section = plan.own_section(config.resolve(unmeasured.raw_config(), PRESET), experiment)
    for name, dataset in module.datasets(section).items():
        if name in wanted and not (folder / name).is_dir():
            generate({"dataset": name, **dataset}, folder / name)


def _measured(module: Any, cell: Cell, record: Record, folder: Path) -> Record:
    try:
        measurement = module.run(replace(cell, data_folder=str(folder)))
    except Unsupported as reason:
        return replace(record, status="unsupported", reason=str(reason))
    child.check(measurement)
    found = json.loads(json.dumps(child.as_answer(measurement)))
    return replace(
        record,
        samples={name: [samples] for name, samples in found["samples"].items()},
        warmup={name: [samples] for name, samples in found["warmup"].items()},
        values=found["values"],
        series=found["series"],
        timers=found["timers"],
    )


def standing_in(experiment: str, tiny: Sequence[Record]) -> list[Record]:
    """The cells with figures of the tiny preset's cells, each of the one that is most like it."""
    return [_like(record, tiny) for _, record in planned(experiment)]


def _like(record: Record, tiny: Sequence[Record]) -> Record:
    alike = [one for one in tiny if one.ok and one.factors.keys() == record.factors.keys()]
    if not record.ok or not alike:
        return record
    found = max(alike, key=lambda one: _likeness(one.factors, record.factors))
    return replace(found, factors=record.factors)


def _likeness(one: dict[str, Any], other: dict[str, Any]) -> tuple[bool, int, int]:
    """Whether they are the same, else how many names and how many factors are: a name says what figures there are."""
    equal = [name for name in one if one[name] == other[name]]
    return files.canonical(one) == files.canonical(other), sum(isinstance(one[name], str) for name in equal), len(equal)
