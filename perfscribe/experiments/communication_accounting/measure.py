"""CS336's problem communication_accounting: nothing is timed, a cell is the arithmetic of one set of inputs.

The steps come from perfscribe.analytic.communication; remedies.py adds those of the problem's last question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from perfscribe.analytic.communication import Inputs, account
from perfscribe.base.cells import Cell, Measurement
from perfscribe.experiments.communication_accounting.remedies import remedies

DESCRIPTION = ("part", "name", "quantity", "formula", "unit")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """One cell; every input of the problem is a factor of one level."""
    return [Cell({field.name: config[field.name] for field in fields(Inputs)})]


def run(cell: Cell) -> Measurement:
    """All steps of parts a to d in their order: values by the step's name, what describes them as series.

    A value is "none" where there is none; formula then says why.
    """
    inputs = Inputs(**{name: cell[name] for name in cell.factors})
    lines = [*account(inputs), *remedies(inputs)]
    return Measurement(
        values={line.name: "none" if line.value is None else line.value for line in lines},
        series={name: [getattr(line, name) for line in lines] for name in DESCRIPTION},
    )
