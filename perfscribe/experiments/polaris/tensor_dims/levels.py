"""Keys of experiments.tensor_dims with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, constants, devices, experiment, isolation, whole, wholes
from perfscribe.instruments import precision

LEVELS = experiment(
    "The same training on wider tensors, in fp32 and bf16, and with more samples",
    (("batch", "samples"),),
    rounds=shared.ROUNDS,
    isolation=isolation("job", gpu="cell"),  # profiles slow what their process measures next
    device=devices(["cpu"], gpu=["cuda"]),
    d_model=wholes(
        "widths of the model, multiples of its 8 heads, with samples of as many features",
        8,
        65_536,
        [32, 128],
        tiny=[16, 32],
        gpu=[1024, 4096],
        multiple=8,
    ),
    dtype=choices("of the whole model", ["fp32", "bf16"]),
    autocast=choices(
        "further dtypes: of the products alone, by autocast; bf16 | fp16", ["bf16", "fp16"], ["bf16"], empty=True
    ),
    samples=whole("samples in an epoch", 1, 10_000_000, 64, tiny=16, gpu=2048),
    epochs=whole("times that training goes through them", 2, 1000, 3, tiny=2, gpu=2),
    # One width of the model, and features of the samples; where they differ the model refuses them.
    as_given=constants(
        d_model=constant(16, tiny=8, gpu=512),
        features=constant([16, 32], tiny=[8, 16], gpu=[512, 1024]),
        epochs=constant(5, tiny=2),
    ),
    # More samples.
    larger=constants(
        d_model=constant([32, 128], tiny=[32], gpu=[4096]),
        dtype=constant(["bf16"]),
        samples=constant(128, tiny=32, gpu=10000),
        epochs=constant(3, tiny=2, gpu=2),
    ),
    layers=constant(1, gpu=6),
    d_ff=constant(128, tiny=32, gpu=2048),
    source_length=constant(1),
    target_length=constant(20, tiny=4),
    batch=whole("samples in a batch", 1, 1_048_576, 32, tiny=8),
)

SHOWN = Shown(tables=("polaris.tensor_dims",))

FIXED = ("layers", "d_ff", "source_length", "target_length", "batch")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return cells of the given width, of width x dtype with few samples, and with many; sorted by width."""
    single, larger = config["as_given"], config["larger"]
    few = {"samples": config["samples"], "epochs": config["epochs"]}
    many = {"samples": larger["samples"], "epochs": larger["epochs"]}
    fixed = {name: config[name] for name in FIXED}
    by_autocast = {"d_model": config["d_model"], "dtype": config["autocast"]}
    planned: list[dict[str, Any]] = []
    for device in config["device"]:
        rows: list[dict[str, Any]] = [
            {"d_model": single["d_model"], "features": features, "dtype": "fp32", "weights": "fp32"}
            | {"samples": config["samples"], "epochs": single["epochs"]}
            for features in single["features"]
        ]
        for grid_of, weights, size in ((config, None, few), (by_autocast, "fp32", few), (larger, None, many)):
            for levels in grid({"d_model": grid_of["d_model"], "dtype": grid_of["dtype"]}):
                matching = {"d_model": levels["d_model"], "features": levels["d_model"], "dtype": levels["dtype"]}
                rows.append({**matching, "weights": weights or levels["dtype"], **size})
        planned += [{"device": device, **row, **fixed} for row in sorted(rows, key=lambda row: row["d_model"])]
    return [_cell(factors) for factors in planned]


def _cell(factors: dict[str, Any]) -> Cell:
    width, inner = factors["d_model"], factors["d_ff"]
    # True fp32 runs without tensor cores and costs about four times as much as the others.
    work = factors["layers"] * width * (6 * width + 2 * inner) * (4.0 if factors["dtype"] == "fp32" else 1.0)
    cost = float(factors["epochs"] * factors["samples"] * (1e6 + work))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)
