"""Tables of communication_accounting: the problem's inputs, then the steps of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe.experiments.communication_accounting.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NAME = "communication_accounting"
NO_FIGURE = "no record"  # in the place of a step of a cell that has none
LINE = ("quantity", "formula", "value", "unit")
# Config key -> symbol of the formulas, what it is, unit.
INPUTS = {
    "d_model": ("D", "Width of the model", "1"),
    "d_ff": ("F", "Width between the two linear layers of a block", "1"),
    "blocks": ("L", "Blocks", "1"),
    "tokens": ("T", "Tokens in a batch", "tokens"),
    "device_memory_gb": ("memory", "Memory of a device in part a", "GB"),
    "fsdp_memory_gb": ("memory", "Memory of a device in part b", "GB"),
    "gb_bytes": ("GB", "What a GB of these memories is", "B"),
    "sharded_activations": ("s", "Share of the activations that is divided among devices", "1"),
    "bandwidth_bytes_per_s": ("W", "Bandwidth of a mesh axis, both directions together", "B/s"),
    "flop_per_s": ("C", "Rate of a device", "FLOP/s"),
    "fsdp_devices": ("X", "Devices along FSDP's dimension", "devices"),
    "tensor_devices": ("Y", "Devices along tensor parallelism's dimension", "devices"),
    "fsdp_axes": ("M_X", "Mesh axes of FSDP", "axes"),
    "tensor_axes": ("M_Y", "Mesh axes of tensor parallelism", "axes"),
}
DIGITS = 6
NOTE = "Arithmetic, nothing is measured. Symbols are those of the table of inputs and of the lines above."
SOURCES = ("brandon-snider", "damek")
KINDS = {"GiB": "gib", "B": "bytes"}  # last part of a published step's metric by unit; of any other unit it is count


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """The inputs; the steps of all parts. A row is one input or one step of a record."""
    made = records[NAME]
    inputs = [replace(record, factors=record.factors | {"key": key}) for record in made for key in INPUTS]
    columns = [
        t.factor("key", "Config key"),
        t.factor("symbol", "Symbol", lambda r: INPUTS[r.factors["key"]][0]),
        t.factor("quantity", "Quantity", lambda r: INPUTS[r.factors["key"]][1]),
        t.derived("value", "Value", lambda r: r.factors[r.factors["key"]], exact=True),
        t.factor("unit", "Unit", lambda r: INPUTS[r.factors["key"]][2]),
    ]
    note = f"Config keys stand below experiments.{NAME}."
    return [t.make(TABLES[0], "What is given", inputs, columns, [note]), _steps(made)]


def _steps(made: list[Record]) -> t.Table:
    rows = [row for record in made for row in _rows(record)]
    known = references.load(NAME)

    def published(source: str) -> t.Column:
        """What the source prints for a step, where its inputs are those of the record."""

        def get(row: Record) -> Any:
            metric = f"step_{KINDS.get(row.values.get('unit', ''), 'count')}"
            return references.shown(known, source, metric, row.factors)

        return t.quoted(f"published_{source}", source, get)

    columns = [
        *t.factors(part="Part", step="Step"),
        *(t.value(name, name.capitalize(), exact=True) for name in LINE),
        *map(published, SOURCES),
    ]
    return t.make(TABLES[1], "Steps of each part", rows, columns, [NOTE])


def _rows(record: Record) -> list[Record]:
    """The record as one row for each step; one row in all where it has none."""
    if not record.series:
        return [replace(record, factors=record.factors | {"part": NO_FIGURE, "step": NO_FIGURE})]
    return [
        replace(
            record,
            factors=record.factors | {"part": step["part"], "step": step["name"]},
            values={**step, "value": _rounded(record.values[step["name"]])},
        )
        for step in pd.DataFrame(record.series).to_dict("records")
    ]


def _rounded(value: float | str) -> float | str:
    """Whole numbers as they are, others with so many digits that published answers differ by their own rounding."""
    if isinstance(value, str):
        return value
    return int(value) if value == int(value) else float(f"{value:.{DIGITS}g}")
