"""Training of the Polaris homework's model on wider tensors.

Widths with d_model to match, in fp32, with the whole model in bf16, and by autocast; more samples of some of them; and
features beside a d_model that stays as it was: where the two differ the model refuses, and that cell fails with the
model's own message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.instruments import precision

FIXED = ("layers", "d_ff", "source_length", "target_length", "batch")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The width as it is given, width x dtype with few samples, and with many; by width."""
    given, larger = config["as_given"], config["larger"]
    few = {"samples": config["samples"], "epochs": config["epochs"]}
    many = {"samples": larger["samples"], "epochs": larger["epochs"]}
    fixed = {name: config[name] for name in FIXED}
    by_autocast = {"d_model": config["d_model"], "dtype": config["autocast"]}
    wanted: list[dict[str, Any]] = []
    for device in config["device"]:
        own: list[dict[str, Any]] = [
            {"d_model": given["d_model"], "features": features, "dtype": "fp32", "weights": "fp32"}
            | {"samples": config["samples"], "epochs": given["epochs"]}
            for features in given["features"]
        ]
        for grid_of, weights, size in ((config, None, few), (by_autocast, "fp32", few), (larger, None, many)):
            for levels in grid({"d_model": grid_of["d_model"], "dtype": grid_of["dtype"]}):
                matching = {"d_model": levels["d_model"], "features": levels["d_model"], "dtype": levels["dtype"]}
                own.append({**matching, "weights": weights or levels["dtype"], **size})
        wanted += [{"device": device, **levels, **fixed} for levels in sorted(own, key=lambda one: one["d_model"])]
    return [_cell(factors) for factors in wanted]


def _cell(factors: dict[str, Any]) -> Cell:
    width, inner = factors["d_model"], factors["d_ff"]
    # True fp32 runs without tensor cores and costs about four times what the others do.
    work = factors["layers"] * width * (6 * width + 2 * inner) * (4.0 if factors["dtype"] == "fp32" else 1.0)
    cost = float(factors["epochs"] * factors["samples"] * (1e6 + work))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)


def run(cell: Cell) -> Measurement:
    """Check the loss, then train; RuntimeError of the model where its width is not the features'."""
    from perfscribe.models.seq2seq_run import measure

    return measure(cell)
