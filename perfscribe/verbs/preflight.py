"""The self-test as a program, for job scripts that must not train over a broken link.

If a launcher (srun, mpiexec, torchrun) started several processes, each is a rank of the test, over all nodes; by
itself it starts ranks on this machine; with --read it judges the output of NVIDIA's all_reduce_perf. Exit status
0: fast enough, 44: no figure, 46: below the threshold; one line names the nodes and the figure. The backend is nccl
with GPUs, else gloo; sizes, calls and algorithm are those of the config, experiments.preflight.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import nccl_tests, ranks, self_test
from perfscribe.distributed.self_test import NO_FIGURE, PASSED, Outcome, Trial, prefix
from perfscribe.experiments.fsdp.preflight import levels, measure
from perfscribe.plan import capabilities
from perfscribe.records import machine

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300  # for ranks that start late because of a slow file system
ALONE = f"{prefix(PASSED)}a world of one is not tested"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, metavar="N", help="start so many here; by default one for each GPU, without GPUs two")
    add("--threshold", type=float, metavar="GB/S", help="bus bandwidth below which it fails, for the config's")
    add("--read", type=Path, metavar="FILE", help=f"judge this output of {nccl_tests.PROGRAM}, and start nothing")
    return parser


def settings(asked: argparse.Namespace) -> dict[str, Any]:
    """Factors of the test: the config's (preset gpu if there are GPUs), and the threshold from the command line."""
    preset, backend = ("cpu", "gloo") if capabilities.missing(("cuda",)) else ("gpu", "nccl")
    section = config.resolve(config.load(ROOT / "config.yaml"), preset)["experiments"]["preflight"]
    world_size = max(2, machine.identity(())["gpu_count"]) if asked.ranks is None else asked.ranks
    if world_size < 1:
        raise ValueError(f"--ranks {world_size}: at least one is needed")
    (cell,) = levels.cells({**section, "backend": [backend], "world_size": [world_size], "nodes": []})
    return {**cell.factors, **({} if asked.threshold is None else {"threshold_gb_per_s": asked.threshold})}


def trial_of(factors: Mapping[str, Any]) -> Trial:
    """Make the test of these factors."""
    size_bytes = round(factors["size_mib"] * self_test.MIB)
    return Trial(size_bytes, factors["warmup"], factors["iterations"], factors["threshold_gb_per_s"])


def read_log(path: Path, trial: Trial) -> Outcome:
    """Parse the outcome from a log of NVIDIA's program; NoFigure if it has none."""
    output = nccl_tests.read(path)
    figure = nccl_tests.parse(output)
    size = nccl_tests.largest_size(output) or trial.size_bytes
    read = Trial(size, trial.warmup, trial.timed, trial.threshold_gb_per_s)
    return Outcome(read, "nccl", figure.ranks, figure.hosts, figure.busbw_gb_per_s)


def as_rank(factors: Mapping[str, Any]) -> tuple[Outcome, bool]:
    """Run the test as one of a launcher's processes; return the outcome, and whether this rank prints it."""
    import torch.distributed as dist

    from perfscribe.experiments.polaris.rank_methods.job import join

    algorithm = None if factors["algorithm"] == measure.NCCL_CHOOSES else factors["algorithm"]
    with self_test.algorithm(os.environ, algorithm):
        rank = join(WAIT_S)
        outcome = self_test.try_out(trial_of(factors), rank)
    dist.barrier()
    dist.destroy_process_group()
    return outcome, rank.place.rank == 0


def run(asked: argparse.Namespace) -> int:
    """Run the test, print its line on rank 0, and return the exit status."""
    factors = settings(asked)
    trial = trial_of(factors)
    if asked.read is not None:
        outcome = read_log(asked.read, trial)
        return _tell(outcome.code, outcome.line())
    if asked.ranks is None and ranks.find(os.environ).world_size > 1:
        outcome, tells = as_rank(factors)
        return _tell(outcome.code, outcome.line()) if tells else outcome.code
    if factors["world_size"] == 1:
        return _tell(PASSED, ALONE)
    values = measure.run(Cell(factors)).values
    return _tell(values["exit_code"], values["line"])


def _tell(code: int, line: str) -> int:
    print(line, file=sys.stderr if code else sys.stdout, flush=True)
    return code


def main(arguments: Sequence[str]) -> int:
    """Return the exit status; NO_FIGURE with one line for any error."""
    asked = _parser().parse_args(arguments)
    try:
        return run(asked)
    except Exception as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        print(f"{prefix(NO_FIGURE)}no figure: {text}", file=sys.stderr, flush=True)
        return NO_FIGURE
