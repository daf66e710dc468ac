"""naive_ddp to ddp_bucketed_benchmarking of CS336 assignment 2: training steps of one model on several ranks.

A cell is a model, a backend and a number of ranks; all implementations alternate within one launch, each with and
without its communication, so that they are compared in the same minutes, on the same devices and parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import LanguageModel
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs
from perfscribe.instruments.timing import longest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PRELOADED = needs.PRELOADED
# Below the worker's limit (timeout_s), so that a hanging rank is named.
LAUNCH_TIMEOUT_S = 540.0
MARKED = ("_step_backward_ms", "_off_backward_ms", "_tail_ms", "_wait_ms")


@dataclass(frozen=True)
class Training(LanguageModel):
    """Factors of a cell. variants: implementations, separated by blanks; turns: times that each runs `steps`."""

    variants: str
    turns: int
    steps: int
    warmup_steps: int


def run(cell: Cell) -> Measurement:
    """Check every implementation, time all interleaved, then trace a step of each, in one launch."""
    from perfscribe.experiments.cs336.ddp.program import on_rank

    return launched(cell, on_rank)


def launched(cell: Cell, on_rank: Callable[..., Any]) -> Measurement:
    """Run on_rank, a rank's program, on all of the cell's ranks at once; return their results combined."""
    from perfscribe.distributed.launch import Ranks, launch

    arguments = {"factors": dict(cell.factors), "data_folder": cell.data_folder}
    ranks = vars(cell.read(Ranks))
    measurement = combine(launch(on_rank, arguments, timeout_s=LAUNCH_TIMEOUT_S, **ranks))
    measurement.values["implementations"] = len(cell.read(Training).variants.split())
    return measurement


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine the results of all ranks into a Measurement.

    A sample is the longest time of any rank, a value the largest; series are the traced step of rank 0. Samples by
    variant, whose key begins their names:

    - <key>_step_ms, <key>_step_backward_ms: a step with communication, and backward in it
    - <key>_off_ms, <key>_off_backward_ms: the same step without communication
    - <key>_tail_ms: from the end of backward's compute to the end of the last collective
    - <key>_<phase>_ms, <key>_copies_ms: if timed, phases of a step and copies into and out of buckets
    """
    first = ranks[0]
    measurement = Measurement(
        samples={name: longest([rank["samples"][name] for rank in ranks]) for name in first["samples"]},
        warmup={name: longest([rank["warmup"][name] for rank in ranks]) for name in first["warmup"]},
        values={name: max(rank["values"][name] for rank in ranks) for name in first["values"]},
        timers={name: first["marks_timer" if name.endswith(MARKED) else "timer"] for name in first["samples"]},
        warmup_s=max(rank["warmup_s"] for rank in ranks),
        timed_s=max(rank["timed_s"] for rank in ranks),
    )
    measurement.values |= first["traced_values"]
    measurement.series |= first["series"]
    return measurement
