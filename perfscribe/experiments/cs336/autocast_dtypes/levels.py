"""Keys of experiments.autocast_dtypes with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, constant, devices, experiment
from perfscribe.instruments import precision

LEVELS = experiment(
    "Dtype of each part of a small model under autocast, and accuracy of the variance in LayerNorm",
    device=devices(["cpu"], gpu=["cuda"]),
    dtype=choices("autocast dtypes", ["fp16", "bf16"]),
    # Of the LayerNorm inputs whose variance is computed.
    variance_mean=constant([0, 10, 100, 1000, 10000]),
    variance_std=constant(1.0),
    features=constant(1024),
)

SHOWN = Shown(tables=("cs336.autocast_dtypes", "cs336.layernorm_variance"))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return dtype and variance cells for each device and half-precision dtype, and for fp32 as the reference.

    Autocast to fp32 changes no operation: torch warns that it disables itself.
    """
    levels = {"device": config["device"], "dtype": [*(name for name in config["dtype"] if name != "fp32"), "fp32"]}
    inputs = {"variance_mean": config["variance_mean"], "variance_std": [config["variance_std"]]}
    variances = grid({"part": ["variance"], **levels, **inputs, "features": [config["features"]]})
    return [
        Cell(factors, requires=precision.requires(str(factors["device"]), str(factors["dtype"])), cost=cost)
        for cost, group in ((1.0, grid({"part": ["dtypes"], **levels})), (float(config["features"]), variances))
        for factors in group
    ]
