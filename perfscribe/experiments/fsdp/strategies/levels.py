"""Keys of experiments.strategies with their defaults, its cells, and what it shows."""

import itertools
from collections.abc import Mapping
from typing import Any

from perfscribe.analytic.fsdp_plan import DDP, FSDP1, FSDP2, HYBRID_SHARD, SINGLE
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config import shared
from perfscribe.config.keys import choices, constant, experiment, flag, flags, whole, wholes
from perfscribe.distributed import needs
from perfscribe.experiments.fsdp.strategies.measure import ACCUMULATION, EACH, GRID, LAST, PLAN, WRAPPING
from perfscribe.instruments import precision

WRAPPINGS = [
    "fsdp2:per_block:implicit",
    "fsdp2:per_block:forward",
    "fsdp2:per_block:backward",
    "fsdp2:per_block:both",
    "fsdp2:whole:implicit",
    "fsdp1:per_block:backward_post_forward",
    "fsdp1:per_block:backward_pre",
    "fsdp1:per_block:none",
    "fsdp1:whole:backward_post_forward",
    "fsdp1:per_block:backward_post",  # in no preset
]

LEVELS = experiment(
    "Training steps under DDP and FSDP by sharding strategy, off-load, checkpointing, dtype and number of ranks",
    rounds=shared.ROUNDS,
    **shared.STRATEGY_RUNS,
    world_size=wholes("ranks", 1, 1024, [1, 2], gpu=[1, 2, 4]),
    full_grid=flag(
        "whether several ranks have every combination; otherwise one differs at a time from the first level of each",
        False,
        gpu=True,
    ),
    strategy=choices(
        "FSDP2's without a prefix; FSDP1's are measured beside the first level of all else alone",
        ["full_shard", "ddp", "shard_grad_op", "hybrid_shard", "fsdp1_full_shard", "fsdp1_shard_grad_op"],
        ["full_shard", "ddp", "shard_grad_op", "hybrid_shard", "fsdp1_full_shard"],
    ),
    dtype=choices(
        "of the products and of what is gathered; parameters are fp32",
        ["fp32", "bf16", "fp16"],
        tiny=["fp32", "bf16"],
        gpu=["fp16"],
    ),
    reduce_dtype=constant("fp32"),  # of gradients of bf16 and fp16 products
    offload=flags("whether FSDP keeps parameters, gradients and optimizer state on the CPU", [False, True]),
    checkpointing=flags("whether the activations of each block are computed again in backward", [False, True]),
    batch=whole("sequences in a batch of each rank", 1, 1_048_576, 1),
    seq_len=whole("sequence length, in tokens", 2, 1_048_576, 32, tiny=16, gpu=512),
    warmup_steps=whole(
        "steps before the timed ones; four more come before them, in which the plan is looked at", 0, 5, 1, gpu=2
    ),
    timed_steps=whole("steps that are timed", 1, 20, 3, tiny=2, gpu=8),
    offload_steps=constant(3, tiny=2),  # timed with CPU off-load
    wrapping=choices(
        "variants of wrapping and prefetching under FULL_SHARD with several ranks, as api:wrapping:prefetch",
        WRAPPINGS,
        [
            "fsdp2:per_block:implicit",
            "fsdp2:per_block:both",
            "fsdp2:whole:implicit",
            "fsdp1:per_block:backward_post_forward",
            "fsdp1:whole:backward_post_forward",
        ],
        tiny=["fsdp2:per_block:implicit", "fsdp1:per_block:backward_post_forward", "fsdp1:whole:backward_post_forward"],
        gpu=WRAPPINGS[:-1],
    ),
    turns=whole("turns of those variants; an interval needs 6 or more", 1, 20, 2, tiny=1, gpu=6),
    turn_steps=constant(2, tiny=1, gpu=3),  # timed in each turn, after one that is not
)

SHOWN = Shown(
    tables=("fsdp.strategies", "fsdp.wrapping", "fsdp.world_of_one", "fsdp.offload_accumulation"),
    figures=("fsdp.strategies",),
)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return the grid by number of ranks, then wrapping and prefetching, then accumulation with off-load."""
    common = {"backend": config["backend"], "device": needs.DEVICES[config["backend"]]}
    common |= {name: config[name] for name in ("model", "batch", "seq_len", "reduce_dtype")}
    planned = []
    for world_size in config["world_size"]:
        for plan in plans(config, world_size):
            steps = config["offload_steps" if plan["offload"] else "timed_steps"]
            warmup = min(1, config["warmup_steps"]) if plan["offload"] else config["warmup_steps"]
            counts = {"warmup_steps": warmup, "timed_steps": steps}
            planned.append({"part": GRID, "world_size": world_size, **plan, **common, **counts})
    planned = [factors for number, factors in enumerate(planned) if factors not in planned[:number]]
    sizes = [ranks for ranks in config["world_size"] if ranks > 1]
    base = {"strategy": "full_shard", "dtype": config["dtype"][0], "offload": False, "checkpointing": False}
    counts = {"turns": config["turns"], "warmup_steps": 1, "timed_steps": config["turn_steps"]}
    variants = {"variants": ", ".join(config["wrapping"])}
    for ranks in sizes:
        planned.append({"part": WRAPPING, "world_size": ranks, **base, **common, **counts, **variants})
    for ranks, api, offload, exchange in itertools.product(sizes, ("fsdp2", "fsdp1"), (False, True), (EACH, LAST)):
        plan = {"api": api, **base, "dtype": "fp32", "offload": offload, "exchange": exchange}
        planned.append({"part": ACCUMULATION, "world_size": ranks, **plan, **common})
    return [_cell(factors) for factors in planned]


def plans(config: Mapping[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Return factors of the grid's plans for a number of ranks: one factor varied at a time, or all with full_grid.

    full_grid applies to several ranks. The base is the first level of each factor; FSDP1 differs from it only in
    strategy. One rank also has the unwrapped model. Left out: DDP with off-load, HYBRID_SHARD of one rank.
    """
    fsdp1 = [level for level in config["strategy"] if level.startswith(FSDP1)]
    strategies = [level for level in config["strategy"] if level not in fsdp1]
    levels = {"strategy": strategies, **{name: config[name] for name in ("dtype", "offload", "checkpointing")}}
    base = {name: options[0] for name, options in levels.items()}
    combinations = [base | {name: level} for name, options in levels.items() for level in options]
    if config["full_grid"] and world_size > 1:
        combinations = [dict(zip(levels, chosen, strict=True)) for chosen in itertools.product(*levels.values())]
    combinations += [base | {"strategy": level} for level in fsdp1]
    if world_size == 1:
        combinations.insert(0, base | {"strategy": SINGLE})
    named = [plan | dict(zip(PLAN[:2], api_of(plan["strategy"]), strict=True)) for plan in combinations]
    return [{name: plan[name] for name in PLAN} for plan in named if _exists(plan, world_size)]


def _exists(plan: Mapping[str, Any], world_size: int) -> bool:
    unsupported = plan["offload"] and plan["api"] in (SINGLE, DDP)
    return not unsupported and not (plan["strategy"] == HYBRID_SHARD and world_size == 1)


def api_of(level: str) -> tuple[str, str]:
    """Return api and strategy of a configured level: ddp, full_shard (FSDP2's), fsdp1_full_shard."""
    if level in (SINGLE, DDP):
        return level, level
    return (FSDP1, level.removeprefix(f"{FSDP1}_")) if level.startswith(FSDP1) else (FSDP2, level)


def _cell(factors: dict[str, Any]) -> Cell:
    """Return the cell; its cost orders by ranks, so that each number is launched once, then cheap cells first."""
    world_size, on_gpu = factors["world_size"], factors["device"] == "cuda"
    requires = [*precision.requires(factors["device"], factors["dtype"])]
    requires += ["transformers"] * (factors["model"] in BLOOM)
    requires += needs.of_ranks(factors["device"], world_size)
    if not on_gpu and factors.get("api") == "fsdp1" and factors["offload"]:
        requires.append("cuda")  # FSDP1 looks for an accelerator even if all computation is on the CPU
    cost = 100 * world_size + 10 * factors["offload"] + (20 if factors["part"] == WRAPPING else 1)
    halved = factors["strategy"] == HYBRID_SHARD and world_size % 2
    skip = f"HYBRID_SHARD halves the ranks, and {world_size} is odd" if halved else ""
    return Cell(factors, requires=tuple(requires), cost=float(cost), skip=skip)
