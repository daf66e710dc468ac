"""optimizer_state_sharding of CS336 assignment 2: AdamW plain, and with state divided among ranks by ours and torch's.

A cell holds all three, in one launch of its ranks: memory is counted with one optimizer at a time, then ours is
compared with the plain one over ten steps, then all are timed interleaved on the same model. The plain one runs twice
in each turn, which shows how far equal variants differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import LanguageModel, Steps
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.instruments.memory import CPU_COUNTER, CUDA_COUNTER
from perfscribe.instruments.timing import record_of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PRELOADED = needs.PRELOADED
# Below a cell's time limit, so that a hanging rank is named.
LAUNCH_TIMEOUT_S = 300.0

UNSHARDED, SHARDED, PEER = "unsharded", "sharded", "zero_redundancy"
IMPLEMENTATIONS = (UNSHARDED, SHARDED, PEER)
AGAIN = "unsharded_again"  # the plain optimizer again in each turn: how far equal variants differ

# In the order of a step: bytes allocated at three moments (init, before_step, after_step), peak bytes of the two
# stretches between them (passes, step).
INIT, PASSES, BEFORE_STEP, STEP, AFTER_STEP = "init", "passes", "before_step", "step", "after_step"
MOMENTS = (INIT, PASSES, BEFORE_STEP, STEP, AFTER_STEP)

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, COMMUNICATION, OTHER = "activations and temporaries", "communication buffers", "tables, batch, workspaces"
KINDS = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, COMMUNICATION, OTHER)


@dataclass(frozen=True)
class Sharding(LanguageModel, Steps):
    """Factors of a cell, and the folder of its data.

    wrapper: averages gradients, a key of ddp.BY_NAME. turns: how often each optimizer is timed, interleaved.
    optimizer_steps: steps of the optimizer by itself that are timed in each turn.
    """

    data_folder: str
    wrapper: str
    turns: int
    optimizer_steps: int


def run(cell: Cell) -> Measurement:
    """Launch the ranks and combine their results."""
    from perfscribe.experiments.cs336.optimizer_state_sharding.program import on_rank

    return launched(cell, on_rank)


def launched(cell: Cell, on_rank: Callable[..., Any]) -> Measurement:
    """Run on_rank(arguments, rank) on each of the cell's ranks, and combine() their results."""
    from perfscribe.distributed.launch import Ranks, launch

    arguments = {**cell.factors, "data_folder": str(cell.data_folder)}
    return combine(launch(on_rank, arguments, timeout_s=LAUNCH_TIMEOUT_S, **vars(cell.read(Ranks))))


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine the results of program.on_rank, in the order of ranks, into a Measurement.

    samples: <implementation>_step_ms, <implementation>_optimizer_ms (also of unsharded_again), sharded_update_ms and
    sharded_exchange_ms; of each call the longest time of any rank.
    series: <implementation>_<moment>_bytes, bytes by kind (KINDS) on the rank with most at that moment, and
    <implementation>_<moment>_rank_bytes, the total of each rank.
    values: memory_counter; difference, the largest relative one of a parameter from the plain optimizer's;
    <implementation>_outside_bytes, the largest, on a GPU only; gradient_calls and gradient_bytes of rank 0 in a step.
    """
    first = ranks[0]
    found = Measurement(values=dict(first["traffic"]))
    found.values["difference"] = max(rank["difference"] for rank in ranks)
    on_gpu = first["outside"][UNSHARDED] is not None
    found.values["memory_counter"] = CUDA_COUNTER if on_gpu else CPU_COUNTER
    for name in IMPLEMENTATIONS:
        for moment in MOMENTS:
            held = [rank["memory"][name][moment] for rank in ranks]
            found.series[f"{name}_{moment}_bytes"] = max(held, key=sum)
            found.series[f"{name}_{moment}_rank_bytes"] = [sum(kinds) for kinds in held]
        if on_gpu:
            found.values[f"{name}_outside_bytes"] = max(rank["outside"][name] for rank in ranks)
    for name in first["timings"]:
        record_of_ranks(found, name, [rank["timings"][name] for rank in ranks])
    return found
