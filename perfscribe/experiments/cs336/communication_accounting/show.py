"""Tables of communication_accounting: the problem's inputs, then the steps of its parts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.experiments.cs336.communication_accounting.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES = SHOWN.tables
NAME = "communication_accounting"
LINE = ("quantity", "formula", "value", "unit")
# Input -> symbol in the formulas, description, unit.
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
KINDS = {"GiB": "gib", "B": "bytes"}  # suffix of a published step's metric by unit; count for any other unit


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the inputs, and the steps of all parts; a row is one input or one step of a record."""
    cells = records[NAME]
    inputs = [
        replace(record, factors={**record.factors, "key": key, "symbol": symbol, "quantity": quantity, "unit": unit})
        for record in cells
        for key, (symbol, quantity, unit) in INPUTS.items()
    ]
    note = "The handout's, except tokens and gb_bytes, which are a published solution's. No config key sets them."
    return [
        t.make(TABLES[0], "What is given", inputs, GIVEN, [note]),
        t.make(TABLES[1], "Steps of each part", t.expanded(cells, ["part", "step"], _steps), STEPS, [NOTE]),
    ]


GIVEN = [
    *t.factors(key="Input", symbol="Symbol", quantity="Quantity"),
    t.derived("value", "Value", lambda record: record.factors[record.factors["key"]], exact=True),
    t.factor("unit", "Unit"),
]


def _steps(record: Record) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for step in pd.DataFrame(record.series).to_dict("records"):
        yield step["part"], step["name"], {**step, "value": _rounded(record.values[step["name"]])}


def _rounded(value: float | str) -> float | str:
    """Return whole numbers unchanged, others to DIGITS digits: published answers differ only by their rounding."""
    if isinstance(value, str):
        return value
    return int(value) if value == int(value) else float(f"{value:.{DIGITS}g}")


def _published(row: Record, source: str) -> Any:
    """Return the value that the source prints for a step, if its inputs are the record's."""
    metric = f"step_{KINDS.get(row.values.get('unit', ''), 'count')}"
    return references.shown(NAME, source, metric, row.factors)


STEPS = [
    *t.factors(part="Part", step="Step"),
    *(t.value(name, name.capitalize(), exact=True) for name in LINE),
    *(t.quoted(f"published_{source}", source, partial(_published, source=source)) for source in SOURCES),
]
