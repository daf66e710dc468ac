"""What stands between mpiexec and a rank: asks MPI for the rank's place, cleans the environment, goes on as the rank.

`python -m perfscribe.distributed.mpi_start MODULE`, started by mpiexec or srun, initialises MPI through mpi4py, keeps
what each method says, takes the launchers' variables (PALS_*, PMI_*, OMPI_*, SLURM_*) out of this process's
environment and puts in those that torch.distributed reads, as MPI's split of shared memory says. Then MODULE runs as
the main program.
`… --say DEVICES` prints what mpi4py says instead: for processes that MPI did not start.
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

KEPT_VARIABLE = "PERFSCRIBE_PLACES"  # what each method said, as JSON
ORDER_VARIABLE = "PERFSCRIBE_LAUNCH"  # rank.py's, which is not to be imported before it runs as the main program
REMOVED = re.compile(r"(PALS|PMI|OMPI|SLURM)_")
SAY = "--say"
ALONE_S = 30.0
NOT_ASKED = "not asked"

MODULO, SPLIT = "mpi4py_modulo", "mpi4py_split_type"
# A method is a way to find rank, world size and local rank: two ask MPI, the others read a launcher's variables.
BY_VARIABLES = {
    "pals": ranks.PALS,
    "slurm": ranks.SLURM,
    "open_mpi": ranks.OPEN_MPI,
    "mpich": ranks.MPICH,
    "torchrun": ranks.TORCHRUN,
}
METHODS = (MODULO, SPLIT, *BY_VARIABLES)

# (rank, world size, local rank), the last None where it is not said; None: nothing at all; a text: why it failed.
Said = list[Any] | str | None


def said(claim: Claim | None) -> Said:
    """A claim as JSON holds it."""
    return None if claim is None else [claim.rank, claim.world_size, claim.local_rank]


def by_variables(environment: Mapping[str, str]) -> dict[str, Said]:
    """What each method that reads variables says."""
    found: dict[str, Said] = {}
    for method, source in BY_VARIABLES.items():
        try:
            found[method] = said(ranks.claim(source, environment))
        except ValueError as error:
            found[method] = str(error)
    return found


def by_mpi(mpi: Any, devices: int) -> dict[str, Claim]:
    """What mpi4py's module says by both methods; devices: of a node.

    The local rank is the rank modulo the devices, right only where each node is full and ranks are placed in blocks;
    or that among the processes that share memory, right under every placement.
    """
    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    rank, size = world.Get_rank(), world.Get_size()
    return {
        MODULO: Claim("mpi4py COMM_WORLD", rank, size, rank % devices),
        SPLIT: Claim("mpi4py COMM_TYPE_SHARED", rank, size, node.Get_rank(), node.Get_size()),
    }


def alone(devices: int) -> dict[str, Said]:
    """What mpi4py says in a process that was started like this one; asked in a child, which MPI may break."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, SAY, str(devices)]
    # Open MPI is not to look for networks, which takes long on some machines: nothing is sent
    environment = {**os.environ, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ALONE_S, check=True, env=environment)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        text = getattr(error, "stderr", None) or ""
        missing = "No module named 'mpi4py'" in str(text)
        return dict.fromkeys((MODULO, SPLIT), "no mpi4py" if missing else f"MPI failed: {type(error).__name__}")


def places(devices: int, asks_mpi: bool = True) -> dict[str, Said]:
    """What every method says in this process: as kept before the environment was cleaned, or asked now."""
    kept = os.environ.get(KEPT_VARIABLE)
    if kept:
        return dict(json.loads(kept))
    asked = alone(devices) if asks_mpi else dict.fromkeys((MODULO, SPLIT), NOT_ASKED)
    return {**asked, **by_variables(os.environ)}


def clean(environment: dict[str, str] | os._Environ[str], claim: Claim) -> list[str]:
    """Take the launchers' variables out and put torch.distributed's in; the names that were taken out."""
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
    """Devices of a node as the launch's order has it; without GPUs as many as it has ranks here."""
    order = json.loads(os.environ[ORDER_VARIABLE])
    if order["device"] == "cuda":
        import torch

        return torch.cuda.device_count()
    return int(order["world_size"])


def main(arguments: list[str]) -> None:
    """See the module."""
    if arguments[0] == SAY:
        from mpi4py import MPI

        print(json.dumps({name: said(claim) for name, claim in by_mpi(MPI, int(arguments[1])).items()}), flush=True)
        return
    found = by_variables(os.environ)
    from mpi4py import MPI

    by_asking = by_mpi(MPI, _devices())
    clean(os.environ, by_asking[SPLIT])
    os.environ[KEPT_VARIABLE] = json.dumps({name: said(claim) for name, claim in by_asking.items()} | found)
    MPI.Finalize()  # it has said all that is asked of it, and a rank may leave at any time
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
