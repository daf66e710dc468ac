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
    wanted: list[dict[str, Any]] = []
    for device in config["device"]:
        at = {"device": device}
        for features in given["features"]:
            levels = {"d_model": given["d_model"], "features": features, "dtype": "fp32", "weights": "fp32"}
            wanted.append({**at, **levels, "samples": config["samples"], "epochs": given["epochs"]})
        whole = grid({"d_model": config["d_model"], "dtype": config["dtype"]})
        wanted += [{**at, **_matching(levels, str(levels["dtype"])), **few} for levels in whole]
        cast = grid({"d_model": config["d_model"], "dtype": config["autocast"]})
        wanted += [{**at, **_matching(levels, "fp32"), **few} for levels in cast]
        more = grid({"d_model": larger["d_model"], "dtype": larger["dtype"]})
        wanted += [{**at, **_matching(levels, str(levels["dtype"])), **many} for levels in more]
    order = config["device"].index
    wanted.sort(key=lambda levels: (order(levels["device"]), levels["d_model"]))
    return [_cell({**levels, **fixed}) for levels in wanted]


def _matching(levels: Mapping[str, Any], weights: str) -> dict[str, Any]:
    """Features as wide as the model."""
    own = {"d_model": levels["d_model"], "features": levels["d_model"]}
    return {**own, "dtype": levels["dtype"], "weights": weights}


def _cell(factors: dict[str, Any]) -> Cell:
    width, inner = factors["d_model"], factors["d_ff"]
    # True fp32 runs without tensor cores and costs about four times what the others do.
    work = factors["layers"] * width * (6 * width + 2 * inner) * (4.0 if factors["dtype"] == "fp32" else 1.0)
    cost = float(factors["epochs"] * factors["samples"] * (1e6 + work))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)


def run(cell: Cell) -> Measurement:
    """Check the loss, then train; RuntimeError of the model where its width is not the features'."""
    from perfscribe.models.seq2seq_run import measure
    from perfscribe.models.seq2seq_training import Job

    return measure(
        Job(**{name: cell[name] for name in Job.__dataclass_fields__ if name in cell.factors}), cell["epochs"]
    )
