"""Training of the Polaris homework's model in fp32, fp16 (with a loss scaler) and bf16, over target length and width.

fp16 and bf16 are autocast with fp32 weights, as in the homework's scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.instruments import precision

FIXED = ("layers", "d_ff", "source_length", "batch", "epochs")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of device, width, target length and dtype; the wider models get fewer samples."""
    varied = {name: config[name] for name in ("device", "d_model", "target_length", "dtype")}
    fixed = {name: config[name] for name in FIXED}
    narrowest = min(config["d_model"])
    result = []
    for levels in grid(varied):
        samples = config["samples"] if levels["d_model"] == narrowest else config["wide_samples"]
        result.append(_cell({**levels, "samples": samples, **fixed}))
    return result


def _cell(factors: dict[str, Any]) -> Cell:
    width, inner = factors["d_model"], factors["d_ff"]
    # True fp32 runs without tensor cores and costs about four times what the others do.
    work = factors["layers"] * width * (6 * width + 2 * inner) * (4.0 if factors["dtype"] == "fp32" else 1.0)
    cost = float(factors["epochs"] * factors["samples"] * (1e7 + work * factors["target_length"]))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)


def run(cell: Cell) -> Measurement:
    """Check the loss, then train."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell)
