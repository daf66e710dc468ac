"""Measures the FSDP workshop's sharding strategies: DDP, FSDP by strategy, off-load, checkpointing, dtype and ranks.

A cell of the grid is one plan with nothing else on its devices. One more cell interleaves variants of wrapping and
prefetching; another sums the gradients of two micro-batches. Ranks are started once for each number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.fsdp_plan import FSDP1, IMPLICIT, Plan
from perfscribe.base.cells import Cell, Measurement, read
from perfscribe.distributed import needs
from perfscribe.instruments.timing import record_of_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRID, WRAPPING, ACCUMULATION = "grid", "wrapping", "accumulation"
PLAN = ("api", "strategy", "dtype", "offload", "checkpointing")
EACH, LAST = "each", "last"  # micro-batches whose backward exchanges gradients
MICRO_BATCHES = 2
# FSDP1's prefetching where it is no factor: like FSDP2, always the next unit of the pass.
FSDP1_PREFETCH = "backward_pre"
PROGRAM = "perfscribe.experiments.fsdp.strategies.program"  # imports all that ranks run except BLOOM's code
PRELOADED = (*needs.PRELOADED, "torch.nn.parallel.distributed", "torch.profiler", PROGRAM)
LIMIT_S = 240.0  # of a cell; below the worker's limit, so that a hanging rank is named


@dataclass(frozen=True)
class Steps:
    """Factors of a cell next to its plan; those with a default are of some parts only."""

    model: str
    batch: int
    seq_len: int
    part: str = GRID
    turns: int = 0
    warmup_steps: int = 0
    timed_steps: int = 0
    variants: str = ""
    exchange: str = ""


def plan_of(factors: Mapping[str, Any]) -> Plan:
    """Return the plan of a cell's factors."""
    plan = read(factors, Plan)
    return replace(plan, prefetch=FSDP1_PREFETCH) if (plan.api, plan.prefetch) == (FSDP1, IMPLICIT) else plan


def from_level(level: str) -> list[dict[str, str]]:
    """Return the factors of each variant, written as api:wrapping:prefetch."""
    names = ("api", "wrapping", "prefetch")
    return [dict(zip(names, one.split(":"), strict=True)) for one in level.split(", ")]


def key_of(variant: Mapping[str, str]) -> str:
    """Return the prefix of the names of a variant's samples and values."""
    return "_".join((variant["api"], variant["wrapping"], variant["prefetch"]))


def run(cell: Cell) -> Measurement:
    """Run the cell on its ranks and combine their results."""
    from perfscribe.distributed.launch import Ranks, waiting
    from perfscribe.experiments.fsdp.strategies.program import on_rank

    workers = waiting(on_rank, alone=True, timeout_s=LIMIT_S, **vars(cell.read(Ranks)))
    return combine(workers.ask(dict(cell.factors), LIMIT_S))


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine the ranks' results into a Measurement.

    Samples are the longest time of any rank, values the largest of any rank, losses the mean of all. Names are those of
    program.Trained and of `applied` (wrapper, strategy that took effect, units, …), prefixed with the variant's key if
    several alternate. series: outside and block, first dimension and elements of each parameter there.
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
