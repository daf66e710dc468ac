"""Runs between mpiexec and a rank: gets the rank's place from MPI, cleans the environment, continues as the rank.

`python -m perfscribe.distributed.mpi_start MODULE`, started by mpiexec or srun, initialises MPI through mpi4py, records
each method's answer, removes the launchers' variables (PALS_*, PMI_*, OMPI_*, SLURM_*) from this process's environment
and sets those of torch.distributed according to MPI's split by shared memory. Then MODULE runs as the main program.
`… --say DEVICES` instead prints mpi4py's answers: for processes that MPI did not start.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from perfscribe.distributed import ranks
from perfscribe.distributed.ranks import Claim

KEPT_VARIABLE = "PERFSCRIBE_PLACES"  # each method's answer, as JSON
ORDER_VARIABLE = "PERFSCRIBE_LAUNCH"  # as in rank.py, which must not be imported before it runs as the main program
REMOVED = re.compile(r"(PALS|PMI|OMPI|SLURM)_")
SAY = "--say"
ALONE_S = 30.0
NOT_ASKED = "not asked"

MODULO, SPLIT = "mpi4py_modulo", "mpi4py_split_type"
# Methods find rank, world size and local rank: two ask MPI, the others read a launcher's variables.
BY_VARIABLES = {
    "pals": ranks.PALS,
    "slurm": ranks.SLURM,
    "open_mpi": ranks.OPEN_MPI,
    "mpich": ranks.MPICH,
    "torchrun": ranks.TORCHRUN,
}
METHODS = (MODULO, SPLIT, *BY_VARIABLES)

# [rank, world size, local rank], the last None if not known; None: no answer; a text: why it failed.
Answer = list[Any] | str | None


def as_json(claim: Claim | None) -> Answer:
    """Return a claim in its JSON form."""
    return None if claim is None else [claim.rank, claim.world_size, claim.local_rank]


def by_variables(environment: Mapping[str, str]) -> dict[str, Answer]:
    """Return the answer of each method that reads variables."""
    answers: dict[str, Answer] = {}
    for method, source in BY_VARIABLES.items():
        try:
            answers[method] = as_json(ranks.claim(source, environment))
        except ValueError as error:
            answers[method] = str(error)
    return answers


def by_mpi(mpi: Any, devices: int) -> dict[str, Claim]:
    """Return mpi4py's answers by both methods; devices: per node.

    The local rank is the rank modulo the devices, which is right only if every node is full and ranks are placed in
    blocks; or the rank among the processes that share memory, which is right for every placement.
    """
    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    rank, size = world.Get_rank(), world.Get_size()
    return {
        MODULO: Claim("mpi4py COMM_WORLD", rank, size, rank % devices),
        SPLIT: Claim("mpi4py COMM_TYPE_SHARED", rank, size, node.Get_rank(), node.Get_size()),
    }


def alone(devices: int) -> dict[str, Answer]:
    """Return mpi4py's answers in a process started like this one; in a child, because MPI may crash it."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, SAY, str(devices)]
    # Open MPI must not search for networks, which takes long on some machines: nothing is sent
    environment = {**os.environ, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ALONE_S, check=True, env=environment)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        text = getattr(error, "stderr", None) or ""
        missing = "No module named 'mpi4py'" in str(text)
        return dict.fromkeys((MODULO, SPLIT), "no mpi4py" if missing else f"MPI failed: {type(error).__name__}")


def places(devices: int, asks_mpi: bool = True) -> dict[str, Answer]:
    """Return every method's answer in this process: as recorded before the environment was cleaned, or asked now."""
    kept = os.environ.get(KEPT_VARIABLE)
    if kept:
        return dict(json.loads(kept))
    asked = alone(devices) if asks_mpi else dict.fromkeys((MODULO, SPLIT), NOT_ASKED)
    return {**asked, **by_variables(os.environ)}


def clean(environment: dict[str, str] | os._Environ[str], claim: Claim) -> list[str]:
    """Remove the launchers' variables and set torch.distributed's; returns the names removed."""
    removed = sorted(name for name in environment if REMOVED.match(name))
    for name in removed:
        del environment[name]
    environment |= {
        "RANK": str(claim.rank),
        "WORLD_SIZE": str(claim.world_size),
        "LOCAL_RANK": str(claim.local_rank),
        "LOCAL_WORLD_SIZE": str(claim.local_world_size),
    }
    return removed


def _devices() -> int:
    """Return the devices per node from the launch's order; without GPUs the number of ranks."""
    order = json.loads(os.environ[ORDER_VARIABLE])
    if order["device"] == "cuda":
        import torch

        return torch.cuda.device_count()
    return int(order["world_size"])


def main(arguments: list[str]) -> None:
    """Run as the module's docstring describes."""
    if arguments[0] == SAY:
        from mpi4py import MPI

        print(json.dumps({name: as_json(claim) for name, claim in by_mpi(MPI, int(arguments[1])).items()}), flush=True)
        return
    answers = by_variables(os.environ)
    from mpi4py import MPI

    by_asking = by_mpi(MPI, _devices())
    clean(os.environ, by_asking[SPLIT])
    os.environ[KEPT_VARIABLE] = json.dumps({name: as_json(claim) for name, claim in by_asking.items()} | answers)
    MPI.Finalize()  # not needed any more, and a rank may leave at any time
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
