"""The words of strategies: its parts, the levels that name several things at once, and what they mean."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.analytic.fsdp_plan import DDP, FSDP1, FSDP2, HYBRID_SHARD, IMPLICIT, PER_BLOCK, SINGLE, Plan

GRID, WRAPPING, ACCUMULATION, COUNT = "grid", "wrapping", "accumulation", "count"
PLAN = ("api", "strategy", "dtype", "offload", "checkpointing")
EACH, LAST = "each", "last"  # micro-batches whose backward exchanges gradients
MICRO_BATCHES = 2
# FSDP1's prefetching where that is no factor: FSDP2's, which is always of the next unit of the pass.
FSDP1_PREFETCH = "backward_pre"
SEPARATOR = ":"


def api_of(level: str) -> tuple[str, str]:
    """Api and strategy of a config's level: ddp, full_shard (FSDP2's), fsdp1_full_shard."""
    if level in (SINGLE, DDP):
        return level, level
    return (FSDP1, level.removeprefix(f"{FSDP1}_")) if level.startswith(FSDP1) else (FSDP2, level)


def plan_of(factors: Mapping[str, Any]) -> Plan:
    """The plan of a cell's factors."""
    api = factors["api"]
    return Plan(
        api=api,
        strategy=factors["strategy"],
        dtype=factors["dtype"],
        reduce_dtype=factors["reduce_dtype"],
        offload=factors["offload"],
        checkpointing=factors["checkpointing"],
        wrapping=factors.get("wrapping", PER_BLOCK),
        prefetch=factors.get("prefetch", FSDP1_PREFETCH if api == FSDP1 else IMPLICIT),
    )


def as_level(variants: Sequence[str]) -> str:
    """Variants of wrapping and prefetching as one level."""
    return ", ".join(variants)


def from_level(level: str) -> list[dict[str, str]]:
    """The factors of each variant, api:wrapping:prefetch."""
    names = ("api", "wrapping", "prefetch")
    return [dict(zip(names, one.split(SEPARATOR), strict=True)) for one in level.split(", ")]


def key_of(variant: Mapping[str, str]) -> str:
    """What the names of a variant's samples and values begin with."""
    return "_".join((variant["api"], variant["wrapping"], variant["prefetch"]))


def plans(config: Mapping[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Factors of the grid's plans with so many ranks: one factor at a time, all of them at the largest count.

    Those that do not exist are left out: off-load of DDP, a hybrid of a single rank. The base is the first level of
    each; FSDP1 differs from it in that alone. A single rank has the model alone too.
    """
    beside = [level for level in config["strategy"] if level.startswith(FSDP1)]
    strategies = [level for level in config["strategy"] if level not in beside]
    levels = {"strategy": strategies, **{name: config[name] for name in ("dtype", "offload", "checkpointing")}}
    base = {name: of[0] for name, of in levels.items()}
    found = [base | {name: level} for name, of in levels.items() for level in of]
    if config["full_grid"] and world_size == max(config["world_size"]):
        found = [dict(zip(levels, chosen, strict=True)) for chosen in itertools.product(*levels.values())]
    found += [base | {"strategy": level} for level in beside]
    if world_size == 1:
        found.insert(0, base | {"strategy": SINGLE})
    named = [one | dict(zip(PLAN[:2], api_of(one["strategy"]), strict=True)) for one in found]
    return [{name: one[name] for name in PLAN} for one in named if _exists(one, world_size)]


def _exists(plan: Mapping[str, Any], world_size: int) -> bool:
    without = plan["offload"] and plan["api"] in (SINGLE, DDP)
    return not without and not (plan["strategy"] == HYBRID_SHARD and world_size == 1)


def why_skipped(factors: Mapping[str, Any]) -> str:
    """Why no ranks are started for it; "" where they are."""
    if factors["strategy"] == HYBRID_SHARD and factors["world_size"] % 2:
        return f"HYBRID_SHARD halves the ranks, and {factors['world_size']} is odd"
    return ""
