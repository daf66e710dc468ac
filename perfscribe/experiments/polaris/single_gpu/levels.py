"""Keys of experiments.single_gpu with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choice, choices, constant, devices, experiment, isolation, whole, wholes
from perfscribe.instruments import precision

LEVELS = experiment(
    "The Polaris homework's training on one device: every epoch, throughput, memory",
    (("batch", "samples"),),
    rounds=shared.ROUNDS,
    isolation=isolation("job", gpu="cell"),
    device=devices(["cpu"], gpu=["cuda"]),
    layers=wholes("encoder layers of the model, and as many decoder layers", 1, 1000, [1, 2], gpu=[6]),
    batches=choices(
        "per_sample: collated one by one, as the homework | per_batch: drawn at once | on_device: of samples there",
        ["per_sample", "per_batch", "on_device"],
        ["per_sample", "per_batch"],
        gpu=["per_sample", "per_batch", "on_device"],
    ),
    d_model=constant(64, tiny=32, gpu=512),
    d_ff=constant(256, tiny=64, gpu=2048),
    samples=whole("samples in an epoch", 1, 10_000_000, 64, tiny=16, gpu=2048),
    source_length=constant(1),
    target_length=constant(20),
    batch=whole("samples in a batch", 1, 1_048_576, 32, tiny=8),
    epochs=whole("times that training goes through its samples", 2, 1000, 5, tiny=2, gpu=10),
    dtype=choice(
        "fp32 | tf32 | bf16 | fp16, of the matrix products; weights are fp32", ["fp32", "tf32", "bf16", "fp16"], "fp32"
    ),
)

SHOWN = Shown(tables=("polaris.single_gpu",))

SIZES = ("d_model", "d_ff", "samples", "source_length", "target_length", "batch", "epochs")


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, number of layers and way to draw batches."""
    fixed = {name: config[name] for name in SIZES} | {"dtype": config["dtype"]}
    varied = {name: config[name] for name in ("device", "layers", "batches")}
    return [_cell({**levels, **fixed}) for levels in grid(varied)]


def _cell(factors: dict[str, Any]) -> Cell:
    work = factors["layers"] * factors["d_model"] * (factors["d_model"] + factors["d_ff"])
    cost = float(factors["epochs"] * factors["samples"] * (1e6 + work))
    return Cell(factors, requires=precision.requires(factors["device"], factors["dtype"]), cost=cost)
