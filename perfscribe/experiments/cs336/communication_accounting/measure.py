"""CS336's problem communication_accounting: nothing is timed, a cell is the arithmetic of one set of inputs.

The steps come from perfscribe.analytic.communication, but for those of part d: what lets a smaller batch be bound by
compute. With y = Y alpha / (M_Y F), the share of compute's time that tensor parallelism communicates, the least number
of tokens a device is alpha^2 / (M_X M_Y F) times 1 / (y (1 - y)) where FSDP's and tensor parallelism's communication
take turns, least at y = 1/2, and times 1 / y where they go on at once, least at y = 1. Both follow from the times that
perfscribe.analytic.communication states. Weights that are gathered in one byte in place of two halve FSDP's time.
"""

from __future__ import annotations

from perfscribe.analytic.communication import Inputs, Line, account
from perfscribe.base.cells import Cell, Measurement

TURNS = 4  # 1 / (y (1 - y)) at y = 1/2
DESCRIPTION = ("part", "name", "quantity", "formula", "unit")


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


def remedies(inputs: Inputs) -> list[Line]:
    """The least tokens a device under each remedy, X and Y chosen best, and what pipeline stages send each other."""
    devices = inputs.fsdp_devices * inputs.tensor_devices
    alpha = inputs.flop_per_s / inputs.bandwidth_bytes_per_s
    once = alpha**2 / (inputs.fsdp_axes * inputs.tensor_axes * inputs.d_ff)
    best_y = inputs.tensor_axes * inputs.d_ff / alpha
    return [
        *_pair("overlapped", "FSDP and TP at once", "alpha^2 / (M_X M_Y F)", once, devices),
        Line("d", "overlapped_y", "Y that this needs", "M_Y F / alpha", best_y, "devices"),
        *_pair("one_byte", "weights gathered in 1 B", "2 alpha^2 / (M_X M_Y F)", TURNS * once / 2, devices),
        *_pair("both", "at once and in 1 B", "alpha^2 / (2 M_X M_Y F)", once / 2, devices),
        *_pair("bandwidth", "twice the bandwidth W", "alpha^2 / (M_X M_Y F)", TURNS * once / 4, devices),
        Line("d", "pipeline", "A pipeline stage's output over compute, a stage a block", "alpha / (2 F)",
             alpha / (2 * inputs.d_ff), "1"),
    ]  # fmt: skip


def _pair(name: str, remedy: str, formula: str, tokens: float, devices: int) -> list[Line]:
    return [
        Line("d", name, f"Tokens a device, {remedy}", formula, tokens, "tokens"),
        Line("d", f"{name}_batch", f"Batch, {remedy}", "N x tokens a device", tokens * devices, "tokens"),
    ]
