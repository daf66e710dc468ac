"""Keys of experiments.dtypes with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import constant, devices, dtypes, experiment, isolation, whole, wholes
from perfscribe.instruments import precision

LEVELS = experiment(
    "The same training in fp32, fp16 and bf16, over target length and width",
    (("batch", "samples"), ("batch", "wide_samples")),
    rounds=shared.ROUNDS,
    isolation=isolation("job", gpu="cell"),  # profiles slow what their process measures next
    device=devices(["cpu"], gpu=["cuda"]),
    d_model=wholes(
        "widths of the model, multiples of its 8 heads, and features of each position",
        8,
        65_536,
        [32, 64],
        tiny=[8, 16],
        gpu=[512, 2048, 4096],
        multiple=8,
    ),
    target_length=wholes("positions of a target sequence", 1, 65_536, [20, 50, 100], tiny=[4]),
    dtype=dtypes(
        "bf16, fp16: autocast; fp16 with a loss scaler | tf32: fp32 with TF32 matrix products", ["fp32", "fp16", "bf16"]
    ),
    samples=whole("samples in an epoch, for the narrowest model", 1, 10_000_000, 32, tiny=8, gpu=256),
    wide_samples=whole("samples in an epoch, for wider models", 1, 10_000_000, 32, tiny=8, gpu=96),
    batch=whole("samples in a batch", 1, 1_048_576, 16, tiny=4),
    epochs=whole("times that training goes through its samples", 2, 1000, 3, tiny=2),
    layers=constant(1, gpu=6),
    d_ff=constant(128, tiny=32, gpu=2048),
    source_length=constant(1),
)

SHOWN = Shown(tables=("polaris.dtypes",), figures=("polaris.dtypes_by_length",))

FIXED = ("layers", "d_ff", "source_length", "batch", "epochs")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, width, target length and dtype; wider models get fewer samples."""
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
    # True fp32 runs without tensor cores and costs about four times as much as the others.
    work = factors["layers"] * width * (6 * width + 2 * inner) * (4.0 if factors["dtype"] == "fp32" else 1.0)
    cost = float(factors["epochs"] * factors["samples"] * (1e7 + work * factors["target_length"]))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)
