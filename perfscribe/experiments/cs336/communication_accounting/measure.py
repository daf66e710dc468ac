"""CS336's problem communication_accounting: nothing is timed, a cell is the arithmetic of one set of inputs.

Steps come from perfscribe.analytic.communication, except those of part d: remedies that let a smaller batch be bound by
compute. Let y = Y alpha / (M_Y F), tensor parallelism's communication as a share of compute time. The least number of
tokens per device is alpha^2 / (M_X M_Y F) times 1 / (y (1 - y)) if FSDP's and tensor parallelism's communication
alternate, least at y = 1/2, and times 1 / y if they overlap, least at y = 1. Both follow from the times stated in
perfscribe.analytic.communication. Gathering weights in one byte instead of two halves FSDP's time.
"""

from __future__ import annotations

from perfscribe.analytic.communication import Inputs, Line, account
from perfscribe.base.cells import Cell, Measurement

TURNS = 4  # 1 / (y (1 - y)) at y = 1/2
DESCRIPTION = ("part", "name", "quantity", "formula", "unit")


def run(cell: Cell) -> Measurement:
    """Compute all steps of parts a to d in order: values by the step's name, their descriptions as series.

    A missing value is "none"; its formula gives the reason.
    """
    inputs = cell.read(Inputs)
    lines = [*account(inputs), *remedies(inputs)]
    return Measurement(
        values={line.name: "none" if line.value is None else line.value for line in lines},
        series={name: [getattr(line, name) for line in lines] for name in DESCRIPTION},
    )


def remedies(inputs: Inputs) -> list[Line]:
    """Return the least tokens per device under each remedy with best X and Y, and a pipeline stage's communication."""
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
