"""Sharding strategies of the FSDP workshop: DDP and FSDP by strategy, CPU off-load, checkpointing, dtype and ranks.

A cell of the grid is one plan, alone on its devices. Wrapping and prefetching are one cell more, whose variants take
turns; a further one adds up two micro-batches' gradients. Ranks are started once for each number of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.analytic.fsdp_plan import DDP, FSDP1, FSDP2, HYBRID_SHARD, IMPLICIT, PER_BLOCK, SINGLE, Plan
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.instruments import precision
from perfscribe.instruments.timing import record_of_ranks

GRID, WRAPPING, ACCUMULATION = "grid", "wrapping", "accumulation"
PLAN = ("api", "strategy", "dtype", "offload", "checkpointing")
EACH, LAST = "each", "last"  # micro-batches whose backward exchanges gradients
MICRO_BATCHES = 2
# FSDP1's prefetching where that is no factor: FSDP2's, which is always of the next unit of the pass.
FSDP1_PREFETCH = "backward_pre"
PROGRAM = "perfscribe.experiments.strategies.program"  # imports all that ranks run but BLOOM's own code
PRELOADED = (*needs.PRELOADED, "torch.nn.parallel.distributed", "torch.profiler", PROGRAM)
LIMIT_S = 240.0  # of a cell; below the worker's own limit, so that the rank that hangs is named


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The grid by number of ranks, wrapping and prefetching, accumulation with off-load."""
    same = {"backend": config["backend"], "device": needs.DEVICES[config["backend"]]}
    same |= {name: config[name] for name in ("model", "batch", "seq_len", "reduce_dtype")}
    found = []
    for world_size in config["world_size"]:
        for plan in plans(config, world_size):
            steps = config["offload_steps" if plan["offload"] else "timed_steps"]
            warmup = min(1, config["warmup_steps"]) if plan["offload"] else config["warmup_steps"]
            counts = {"warmup_steps": warmup, "timed_steps": steps}
            found.append({"part": GRID, "world_size": world_size, **plan, **same, **counts})
    found = [one for number, one in enumerate(found) if one not in found[:number]]
    several = [ranks for ranks in config["world_size"] if ranks > 1]
    base = {"strategy": "full_shard", "dtype": config["dtype"][0], "offload": False, "checkpointing": False}
    counts = {"turns": config["turns"], "warmup_steps": 1, "timed_steps": config["turn_steps"]}
    variants = {"variants": ", ".join(config["wrapping"])}
    for ranks in several:
        found.append({"part": WRAPPING, "world_size": ranks, **base, **same, **counts, **variants})
    for ranks, api, offload, exchange in itertools.product(several, ("fsdp2", "fsdp1"), (False, True), (EACH, LAST)):
        plan = {"api": api, **base, "dtype": "fp32", "offload": offload, "exchange": exchange}
        found.append({"part": ACCUMULATION, "world_size": ranks, **plan, **same})
    return [_cell(one) for one in found]


def plans(config: Mapping[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Factors of the grid's plans with so many ranks: one factor at a time, with full_grid all of several ranks.

    Those that do not exist are left out: off-load of DDP, a hybrid of a single rank. The base is the first level of
    each; FSDP1 differs from it in that alone. A single rank has the model alone too.
    """
    beside = [level for level in config["strategy"] if level.startswith(FSDP1)]
    strategies = [level for level in config["strategy"] if level not in beside]
    levels = {"strategy": strategies, **{name: config[name] for name in ("dtype", "offload", "checkpointing")}}
    base = {name: of[0] for name, of in levels.items()}
    found = [base | {name: level} for name, of in levels.items() for level in of]
    if config["full_grid"] and world_size > 1:
        found = [dict(zip(levels, chosen, strict=True)) for chosen in itertools.product(*levels.values())]
    found += [base | {"strategy": level} for level in beside]
    if world_size == 1:
        found.insert(0, base | {"strategy": SINGLE})
    named = [one | dict(zip(PLAN[:2], api_of(one["strategy"]), strict=True)) for one in found]
    return [{name: one[name] for name in PLAN} for one in named if _exists(one, world_size)]


def _exists(plan: Mapping[str, Any], world_size: int) -> bool:
    without = plan["offload"] and plan["api"] in (SINGLE, DDP)
    return not without and not (plan["strategy"] == HYBRID_SHARD and world_size == 1)


def api_of(level: str) -> tuple[str, str]:
    """Api and strategy of a config's level: ddp, full_shard (FSDP2's), fsdp1_full_shard."""
    if level in (SINGLE, DDP):
        return level, level
    return (FSDP1, level.removeprefix(f"{FSDP1}_")) if level.startswith(FSDP1) else (FSDP2, level)


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


def _cell(factors: dict[str, Any]) -> Cell:
    """Cheap ones first within a number of ranks, and few ranks first, so that each number is started once."""
    world_size, on_gpu = factors["world_size"], factors["device"] == "cuda"
    requires = [*precision.requires(factors["device"], factors["dtype"])]
    requires += ["transformers"] * (factors["model"] in BLOOM)
    requires += needs.of_ranks(factors["device"], world_size)
    if not on_gpu and factors.get("api") == "fsdp1" and factors["offload"]:
        requires.append("cuda")  # it looks for an accelerator even where all computes on the CPU
    cost = 100 * world_size + 10 * factors["offload"] + (20 if factors["part"] == WRAPPING else 1)
    halved = factors["strategy"] == HYBRID_SHARD and world_size % 2
    skip = f"HYBRID_SHARD halves the ranks, and {world_size} is odd" if halved else ""
    return Cell(factors, requires=tuple(requires), cost=float(cost), skip=skip)


def run(cell: Cell) -> Measurement:
    """Ask the ranks, and make one measurement of what they say."""
    from perfscribe.distributed.launch import waiting
    from perfscribe.experiments.strategies.program import on_rank

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
