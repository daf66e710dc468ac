"""Keys of experiments.saved_for_backward with their defaults, its cells, and what it shows."""

from collections.abc import Mapping
from typing import Any

from perfscribe.base.cells import Cell, grid
from perfscribe.base.registry import Shown
from perfscribe.config.keys import devices, dtypes, experiment, isolation, lengths, sizes, whole
from perfscribe.instruments import precision

LEVELS = experiment(
    "What a block of the model of end_to_end saves for backward, by operation, and what its passes add to the memory",
    isolation=isolation("job", gpu="cell"),
    device=devices(["cpu"], gpu=["cuda"]),
    size=sizes("model sizes, as in end_to_end", ["micro"], tiny=["nano"], gpu=["2.7B"]),
    seq_len=lengths("sequence lengths, in tokens", [48, 96, 192], tiny=[12, 24], gpu=[128, 2048]),
    dtype=dtypes("bf16, fp16: autocast | tf32: fp32 with TF32 matrix products", ["fp32", "bf16"]),
    batch=whole("sequences in a batch", 1, 1_048_576, 4),
    layers=whole("blocks that are built and run, without embedding and head", 3, 1024, 4, tiny=3),
)
SHOWN = Shown(tables=("cs336.saved_by_operation", "cs336.saved_by_block"), figures=("cs336.memory_by_block",))


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return every combination of device, size, context length and dtype."""
    fixed = {name: config[name] for name in ("batch", "layers")}
    return [_cell({**level, **fixed}) for level in grid({n: config[n] for n in ("device", "size", "seq_len", "dtype")})]


def _cell(factors: dict[str, Any]) -> Cell:
    return Cell(factors, precision.requires(factors["device"], factors["dtype"]), cost=float(factors["seq_len"]))
