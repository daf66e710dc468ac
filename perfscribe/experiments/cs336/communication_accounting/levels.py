"""The cell and tables of experiments.communication_accounting, which has no keys."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from perfscribe.analytic.communication import Inputs
from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config.keys import experiment

LEVELS = experiment("The pen-and-paper problem of a large model's memory and communication; nothing is timed")

SHOWN = Shown(tables=("cs336.communication_inputs", "cs336.communication_steps"))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return one cell; every input of the problem is a factor of one level, whole numbers as int."""
    inputs = {field.name: getattr(Inputs(), field.name) for field in fields(Inputs)}
    return [Cell({name: int(value) if value == int(value) else value for name, value in inputs.items()})]
