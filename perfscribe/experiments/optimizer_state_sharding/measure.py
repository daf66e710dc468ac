"""optimizer_state_sharding of CS336 assignment 2: AdamW, its state divided among ranks by ours and by torch's class.

A cell holds all three, in one launch of its ranks: memory is counted with one optimizer at a time, then ours and
torch's are compared with the plain one over ten steps, then all are timed interleaved on the same model. The plain one
comes twice in each turn, which shows how far equal things differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens
from perfscribe.instruments import precision

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
# Below the time that a cell may take, so that a rank that hangs is named.
LAUNCH_TIMEOUT_S = 300.0


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every batch and context length."""
    vocabulary = next(iter(SIZES.values())).vocab_size
    made: dict[str, dict[str, Any]] = {}
    for batch in [*config["batch"], *config["further"]["batch"]]:
        made |= tokens.datasets(batch, config["seq_len"], vocabulary, config["seed"])
    return made


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Every combination of the config's levels, then the further batches."""
    of = {name: config[name] for name in ("backend", "world_size", "size", "seq_len", "batch", "dtype")}
    fixed = {name: config[name] for name in ("wrapper", "turns", "warmup_steps", "timed_steps", "optimizer_steps")}
    wanted: list[dict[str, Any]] = []
    for levels in (of, of | config["further"]):
        for one in grid(levels):
            if one not in wanted:
                wanted.append(one)
    return [_cell({**one, **fixed}) for one in wanted]


def _cell(factors: dict[str, Any]) -> Cell:
    device, ranks, batch = DEVICES[factors["backend"]], factors["world_size"], factors["batch"]
    shape = SIZES[factors["size"]]
    width = shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    # Every parameter is updated whatever the batch; ranks of a CPU share it.
    work = width * (factors["seq_len"] * batch / (ranks if device == "cuda" else 1) + 100 * ranks)
    return Cell(
        {"device": device, **factors},
        requires=(*precision.requires(device, factors["dtype"]), *([f"cuda:{ranks}"] if device == "cuda" else [])),
        cost=float(work),
        data=(tokens.dataset_name(batch, factors["seq_len"]),),
        skip="" if batch % ranks == 0 else f"a batch of {batch} cannot be divided among {ranks} ranks",
    )


def start_early() -> None:
    """Start the process that ranks are forked from, so that it imports torch while the measuring process does."""
    from perfscribe.distributed.fork_server import SERVER

    SERVER.start()


def run(cell: Cell) -> Measurement:
    """Launch the ranks, and make one measurement of what they say."""
    import random

    from perfscribe.distributed.launch import launch
    from perfscribe.experiments.optimizer_state_sharding.combining import combine
    from perfscribe.experiments.optimizer_state_sharding.program import on_rank

    launched = launch(
        on_rank,
        {**cell.factors, "data_folder": str(cell.data_folder)},
        world_size=cell["world_size"],
        timeout_s=LAUNCH_TIMEOUT_S,
        backend=cell["backend"],
        device=cell["device"],
        seed=random.getrandbits(31),  # of the cell's own seed
    )
    return combine(launched.results)
