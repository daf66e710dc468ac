"""Words that measuring and showing share: parts of the experiment, names of launchers and of methods."""

from __future__ import annotations

from perfscribe.distributed import mpi_start

LAUNCHED, BOUND = "launched", "bound"
HERE = "this machine"
LAUNCHERS = {
    "perfscribe": "Perfscribe's own",
    "torchrun": "torchrun",
    "open_mpi": "mpiexec (Open MPI)",
    "mpich": "mpiexec (MPICH)",
    "pals": "mpiexec (PALS)",
    "slurm": "srun (Slurm)",
}
METHODS = {
    mpi_start.MODULO: "mpi4py, rank mod devices",
    mpi_start.SPLIT: "mpi4py, COMM_TYPE_SHARED",
    "pals": "PALS",
    "slurm": "Slurm",
    "open_mpi": "Open MPI",
    "mpich": "MPICH",
    "torchrun": "torchrun",
}
