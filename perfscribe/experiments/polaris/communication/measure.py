"""Communication of the Polaris homework: training on two ranks of a node against one rank on each of two nodes.

The placements alternate, each with its own persistent ranks, so that both see the same minutes, devices and steps. On
one machine the two nodes are two processes joined by TCP over the loopback interface. The torch profiler traces each
rank. A last cell is a single rank with and without the profiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs

if TYPE_CHECKING:
    from perfscribe.distributed.launch import WorkerGroup

# Placements: nodes and ranks per node of each; its transport on one machine.
PLACEMENTS = {"intra": (1, 2), "inter": (2, 1)}
TRANSPORTS = {"intra": "default", "inter": "tcp"}
RANKS = 2
PROGRAM = "perfscribe.experiments.polaris.communication.program"  # imports all that ranks run
PRELOADED = (*needs.PRELOADED, "torch.nn.parallel.distributed", "torch.profiler", PROGRAM)
LIMIT_S, LONGEST_S = 150.0, 540.0  # of a turn, of a whole single-rank cell; below the worker's limit

# A rank's result of a turn: calls (of each collective the elements of its message, 0 if the profiler does not record
# them, its start and duration in ns), compute_ms, step_ms of the active steps, gradient_bytes, link (links.recorded).
Said = Mapping[str, Any]
Turns = Mapping[str, Sequence[Sequence[Said]]]  # by placement, turn and rank


@dataclass(frozen=True)
class Profiled:
    """Factors of a cell; those with a default are of the single rank's trainings."""

    part: str
    device: str
    backend: str
    implementation: str
    dtype: str
    features: int
    layers: int
    d_ff: int
    source_length: int
    target_length: int
    batch: int
    batches: int
    wait: int
    warmup_steps: int
    active: int
    turns: int
    trainings: int = 0
    training_steps: int = 0


def run(cell: Cell) -> Measurement:
    """Measure turns of both placements, or a single rank's trainings."""
    if cell.read(Profiled).part == "profiler":
        return _run_alone(cell)
    return take_turns(cell, lambda placement: _workers(cell, placement))


def order_of_turns(turns: int) -> list[tuple[int, str]]:
    """Return number and placement of each turn; number -1 warms up. The placement that goes first alternates."""
    names = list(PLACEMENTS)
    return [(turn, name) for turn in range(-1, turns) for name in (names if turn % 2 == 0 else names[::-1])]


def take_turns(cell: Cell, workers: Callable[[str], WorkerGroup]) -> Measurement:
    """Alternate turns of both placements; if the cell has a data folder, the first turn's trace files are kept."""
    level, spent = cell.read(Profiled), [0.0, 0.0]  # seconds of warm-up, of timed turns
    turns: dict[str, list[list[Said]]] = {name: [] for name in PLACEMENTS}
    for turn, name in order_of_turns(level.turns):
        began = time.perf_counter()
        keep = ""
        if turn < 0 and cell.data_folder:
            folder = Path(cell.data_folder).resolve().parent / "traces"
            keep = str(folder / f"{level.backend}-{level.implementation}-{name}")
        turns[name].append(workers(name).ask({"factors": dict(cell.factors), "keep": keep}))
        spent[turn >= 0] += time.perf_counter() - began
    return combine(turns, level.device, *spent)


def _workers(cell: Cell, placement: str) -> WorkerGroup:
    """Return the placement's ranks, started unless they are waiting already."""
    from perfscribe.distributed.launch import waiting
    from perfscribe.experiments.polaris.communication.program import on_rank

    backend, transport = cell.read(Profiled).backend, TRANSPORTS[placement]
    return waiting(on_rank, world_size=RANKS, timeout_s=LIMIT_S, backend=backend, transport=transport)


def combine(turns: Turns, device: str, warmup_s: float = 0.0, timed_s: float = 0.0) -> Measurement:
    """Combine the results of all ranks and turns into a Measurement; the first turn warms up.

    samples, one per turn: <placement>_transfer_ms, and per rank <placement>_rank<r>_ with total_ms, wait_ms,
    compute_ms, slowest_ms, step_ms (mean of the active steps). series <placement>_calls: collectives in each turn.
    The first turn is the homework's own profile, of the third and fourth step, whose files are kept; it is no sample.
    """
    clock = "GPU time stamps" if device == "cuda" else "host clock"
    found = Measurement(warmup_s=warmup_s, timed_s=timed_s)
    for name, of in turns.items():
        for number, ranks in enumerate(of):
            samples = found.warmup if number == 0 else found.samples
            for figure, value in _figures(ranks).items():
                samples.setdefault(f"{name}_{figure}", []).append(value)
                found.timers[f"{name}_{figure}"] = "host clock" if "step" in figure else f"torch profiler, {clock}"
        found.series[f"{name}_calls"] = [len(ranks[0]["calls"]) for ranks in of[1:]]
        first = of[0][0]
        found.values["gradient_bytes"] = first["gradient_bytes"]
        found.values |= {f"{name}_{key}": value for key, value in first["link"].items()}
    return found


def _figures(ranks: Sequence[Said]) -> dict[str, float]:
    transfer_ns, total_ns = transfer_and_totals([rank["calls"] for rank in ranks])
    found = {"transfer_ms": transfer_ns / 1e6}
    for number, rank in enumerate(ranks):
        named = {
            "total_ms": total_ns[number] / 1e6,
            "wait_ms": (total_ns[number] - transfer_ns) / 1e6,
            "compute_ms": rank["compute_ms"],
            "slowest_ms": max(duration for _, _, duration in rank["calls"]) / 1e6,
            "step_ms": sum(rank["step_ms"]) / len(rank["step_ms"]),
        }
        found |= {f"rank{number}_{name}": value for name, value in named.items()}
    return found


def transfer_and_totals(by_rank: Sequence[Sequence[tuple[int, int, int]]]) -> tuple[int, list[int]]:
    """Return nanoseconds of transfer, the same for every rank, and of all collectives per rank, waiting included.

    A collective's kernel (gloo: its thread's work) starts when its rank is ready and ends when the data has gone
    through, so on an early rank it includes the wait for the others. The last rank waits for nobody: the shortest time
    of any rank counts as transfer, the rest of each rank's time as its wait. This is an upper bound of the transfer,
    because it includes delays of a rank that ends late or is disturbed.
    Calls are matched by size, then by start: by start only, two messages that gloo's threads begin at once could be
    swapped. Raises ValueError if ranks have no collective, or not of the same numbers and sizes.
    """
    ordered = [sorted(calls) for calls in by_rank]
    if not ordered[0]:
        raise ValueError(f"the traces of {len(by_rank)} ranks hold no collective")
    sizes = [[elements for elements, _, _ in calls] for calls in ordered]
    for rank, own in enumerate(sizes):
        if own != sizes[0]:
            text = f"collectives cannot be matched: rank 0 has {len(sizes[0])}, rank {rank} {len(own)}"
            raise ValueError(text + (" of other sizes" if len(own) == len(sizes[0]) else ""))
    durations = [[duration for _, _, duration in calls] for calls in ordered]
    return sum(map(min, zip(*durations, strict=True))), [sum(own) for own in durations]


def _run_alone(cell: Cell) -> Measurement:
    from perfscribe.distributed.launch import launch
    from perfscribe.experiments.polaris.communication.program import on_single_rank

    arguments, backend = {"factors": dict(cell.factors)}, cell.read(Profiled).backend
    (samples,) = launch(on_single_rank, arguments, world_size=1, backend=backend, timeout_s=LONGEST_S)
    timers = dict.fromkeys(samples, "host clock")
    return Measurement(samples=samples, timers=timers, timed_s=sum(map(sum, samples.values())))
