"""Self-test before trainings on several processes: one large all-reduce, as in the FSDP workshop's job scripts.

Runs NVIDIA's all_reduce_perf if it is found and the ranks have GPUs of one node, else our own loop. Trainings on the
same number of processes are skipped if the bandwidth is below the threshold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from perfscribe.analytic.traffic import bus_factor
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import needs, self_test
from perfscribe.distributed.self_test import MIB, Outcome, Trial

PRELOADED = needs.BASE
OWN, NVIDIA = "own loop", "all_reduce_perf"
NCCL_CHOOSES = "default"
TIMEOUT_S = 170.0  # below the worker's limit, so that a hanging rank is named


@dataclass(frozen=True)
class AllReduce:
    """Factors of a cell. warmup, iterations: calls. threshold_gb_per_s: least bus bandwidth. algorithm: NCCL's."""

    device: str
    world_size: int
    nodes: int
    size_mib: float
    warmup: int
    iterations: int
    threshold_gb_per_s: float
    algorithm: str


def run(cell: Cell) -> Measurement:
    """Run the all-reduce and judge it.

    samples: time_ms, if our own loop timed the calls. values: busbw_gb_per_s, exit_code (0, or 46 below the
    threshold), line (its summary), nodes, machines, tested_by, slowest_pair, pairs. series: log.
    Raises NoFigure, and the errors of launch(), if there is no bandwidth.
    """
    from perfscribe.distributed import nccl_tests

    level = cell.read(AllReduce)
    program = nccl_tests.find() if level.device == "cuda" and level.nodes == 1 else None
    outcome, log = _by_nvidia(cell, program) if program else _by_own_loop(cell)
    samples = {"time_ms": list(outcome.times_ms)} if outcome.times_ms else {}
    slow = outcome.slowest
    return Measurement(
        samples=samples,
        warmup={"time_ms": list(outcome.warmup_ms)} if samples else {},
        values={
            "busbw_gb_per_s": outcome.busbw_gb_per_s,
            "algbw_gb_per_s": outcome.busbw_gb_per_s / bus_factor(self_test.OPERATION, outcome.world_size),
            "exit_code": outcome.code,
            "line": outcome.line(),
            "nodes": ", ".join(dict.fromkeys(outcome.hosts)),
            "machines": outcome.machines,
            "tested_by": NVIDIA if program else OWN,
            "slowest_pair": f"{slow.first} and {slow.second}" if slow else "none",
            "slowest_pair_gb_per_s": slow.busbw_gb_per_s if slow else "none",
            "pairs": len(outcome.pairs),
        },
        series={"log": log},
        timers={"time_ms": "CUDA events" if level.device == "cuda" else "host clock"} if samples else {},
        warmup_s=sum(outcome.warmup_ms) * 1e-3,
        timed_s=sum(outcome.times_ms) * 1e-3,
    )


def _trial(of: AllReduce) -> Trial:
    return Trial(round(of.size_mib * MIB), of.warmup, of.iterations, of.threshold_gb_per_s)


def _by_own_loop(cell: Cell) -> tuple[Outcome, list[str]]:
    (said, *_) = _launch(self_test.on_rank, cell)
    outcome = self_test.from_json(said)
    return outcome, outcome.log()


def _by_nvidia(cell: Cell, program: str) -> tuple[Outcome, list[str]]:
    """Run NVIDIA's program, which has no times of single calls; below the threshold, our loop tests pairs of ranks."""
    import os

    from perfscribe.distributed import nccl_tests

    level = cell.read(AllReduce)
    trial, world_size = _trial(level), level.world_size
    words = nccl_tests.command(program, trial.size_bytes, world_size, trial.warmup, trial.timed)
    environment = dict(os.environ)
    with self_test.algorithm(environment, _algorithm(level)):
        output = nccl_tests.run(words, TIMEOUT_S, environment)
    figure = nccl_tests.parse(output, world_size)
    outcome = Outcome(trial, "nccl", world_size, figure.hosts * world_size, figure.busbw_gb_per_s)
    if outcome.code and world_size > 2:
        (pairs, *_) = _launch(self_test.pairs_on_rank, cell)
        outcome = self_test.from_json({**asdict(outcome), "pairs": pairs})
    return outcome, [*output.splitlines(), *outcome.log_of_pairs()]


def _launch(program: Any, cell: Cell) -> list[Any]:
    import os

    from perfscribe.distributed.launch import Ranks, launch

    level = cell.read(AllReduce)
    with self_test.algorithm(os.environ, _algorithm(level)):
        return launch(program, {"trial": asdict(_trial(level))}, timeout_s=TIMEOUT_S, **vars(cell.read(Ranks)))


def _algorithm(of: AllReduce) -> str | None:
    return None if of.algorithm == NCCL_CHOOSES else of.algorithm
