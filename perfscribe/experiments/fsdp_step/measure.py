"""One training step under FULL_SHARD, traced: what a step waits for with one row a rank, and with a batch that fills.

A cell is one wrapping with one batch: its steps are timed, then one more is traced on rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.fsdp_plan import FSDP1, FSDP2, IMPLICIT, PER_BLOCK, WHOLE
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.distributed import needs
from perfscribe.instruments import precision
from perfscribe.instruments.timing import record_of_ranks

WAYS = {
    PER_BLOCK: {"api": FSDP2, "wrapping": PER_BLOCK, "prefetch": IMPLICIT},
    WHOLE: {"api": FSDP1, "wrapping": WHOLE, "prefetch": "backward_post_forward"},
}
PROGRAM = "perfscribe.experiments.fsdp_step.program"
PRELOADED = (*needs.PRELOADED, "torch.profiler", PROGRAM)
LIMIT_S = 240.0  # of a cell; below the worker's own limit, so that the rank that hangs is named


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """A cell a number of ranks, wrapping and batch."""
    fixed = {name: config[name] for name in ("backend", "model", "dtype", "seq_len", "warmup_steps", "timed_steps")}
    fixed |= {"device": needs.DEVICES[config["backend"]], "strategy": "full_shard", "reduce_dtype": "fp32"}
    fixed |= {"offload": False, "checkpointing": False}
    found = []
    for levels in grid({name: config[name] for name in ("world_size", "wrapping", "batch")}):
        factors = {**levels, **WAYS[str(levels["wrapping"])], **fixed}
        requires = [*precision.requires(factors["device"], factors["dtype"])]
        requires += ["transformers"] * (factors["model"] in BLOOM)
        requires += needs.of_ranks(factors["device"], factors["world_size"])
        cost = 100.0 * factors["world_size"] + factors["batch"]
        found.append(Cell(factors, requires=tuple(requires), cost=cost))
    return found


def run(cell: Cell) -> Measurement:
    """The slowest rank's steps; the rest is rank 0's."""
    from perfscribe.distributed.launch import waiting
    from perfscribe.experiments.fsdp_step.program import on_rank

    ranks = {name: cell[name] for name in ("world_size", "backend")}
    said = waiting(on_rank, alone=True, timeout_s=LIMIT_S, **ranks).ask(dict(cell.factors), LIMIT_S)
    found = Measurement(values=said[0]["values"])
    record_of_ranks(found, "step_ms", [rank["step_ms"] for rank in said])
    return found
