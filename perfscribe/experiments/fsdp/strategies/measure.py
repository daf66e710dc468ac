"""Sharding strategies of the FSDP workshop: DDP and FSDP by strategy, CPU off-load, checkpointing, dtype and ranks.

A cell of the grid is one plan, alone on its devices. Wrapping and prefetching are one cell more, whose variants take
turns; a further one adds up two micro-batches' gradients. Ranks are started once for each number of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscribe.analytic.fsdp_plan import FSDP1, IMPLICIT, PER_BLOCK, Plan
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.instruments.timing import record_of_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRID, WRAPPING, ACCUMULATION = "grid", "wrapping", "accumulation"
PLAN = ("api", "strategy", "dtype", "offload", "checkpointing")
EACH, LAST = "each", "last"  # micro-batches whose backward exchanges gradients
MICRO_BATCHES = 2
# FSDP1's prefetching where that is no factor: FSDP2's, which is always of the next unit of the pass.
FSDP1_PREFETCH = "backward_pre"
PROGRAM = "perfscribe.experiments.fsdp.strategies.program"  # imports all that ranks run but BLOOM's own code
PRELOADED = (*needs.PRELOADED, "torch.nn.parallel.distributed", "torch.profiler", PROGRAM)
LIMIT_S = 240.0  # of a cell; below the worker's own limit, so that the rank that hangs is named


def plan_of(factors: Mapping[str, Any]) -> Plan:
    """The plan of a cell's factors."""
    api = factors["api"]
    return Plan(
        **{name: factors[name] for name in (*PLAN, "reduce_dtype")},
        wrapping=factors.get("wrapping", PER_BLOCK),
        prefetch=factors.get("prefetch", FSDP1_PREFETCH if api == FSDP1 else IMPLICIT),
    )


def from_level(level: str) -> list[dict[str, str]]:
    """The factors of each variant, api:wrapping:prefetch."""
    names = ("api", "wrapping", "prefetch")
    return [dict(zip(names, one.split(":"), strict=True)) for one in level.split(", ")]


def key_of(variant: Mapping[str, str]) -> str:
    """What the names of a variant's samples and values begin with."""
    return "_".join((variant["api"], variant["wrapping"], variant["prefetch"]))


def run(cell: Cell) -> Measurement:
    """Ask the ranks, and make one measurement of what they say."""
    from perfscribe.distributed.launch import waiting
    from perfscribe.experiments.fsdp.strategies.program import on_rank

    ranks = {name: cell[name] for name in ("world_size", "backend")}
    return combine(waiting(on_rank, alone=True, timeout_s=LIMIT_S, **ranks).ask(dict(cell.factors), LIMIT_S))


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """A Measurement from what each rank says.

    A sample is the longest time of any rank, a value the largest of any rank, a loss the mean of all. Names are those
    of training.Trained, of applied (wrapper, strategy as it took effect, units, …), and begin with the variant's key
    where several take turns. series: outside and block, first dimension and elements of each parameter there.
    """
    first, found = ranks[0], Measurement()
    for name in first["timings"]:
        record_of_ranks(found, name, [rank["timings"][name] for rank in ranks])
    found.values = {name: _over([rank["values"][name] for rank in ranks], name) for name in first["values"]}
    found.values |= {f"applied_{name}": value for name, value in first["applied"].items()}
    if first["layout"] is not None:
        found.values["blocks"] = first["layout"]["blocks"]
        found.series = {name: first["layout"][name] for name in ("outside", "block")}
    return found


def _over(values: Sequence[Any], name: str) -> Any:
    if name.endswith("_loss"):
        return sum(values) / len(values)
    return values[0] if isinstance(values[0], (str, bool)) else max(values)
