"""A process's place: launchers within each other, and contradictions refused. Recordings: test_rank_methods.py."""

from __future__ import annotations

import pytest
from rank_recordings import RECORDINGS

from perfscribe.distributed import ranks
from perfscribe.distributed.ranks import Place

TORCHRUN = RECORDINGS["torchrun_below_srun"].environment(3)  # with those of Slurm, which started it
SLURM = RECORDINGS["slurm_uneven"].environment(3)
OPEN_MPI = RECORDINGS["open_mpi_block"].environment(3)
PALS = RECORDINGS["pals_block"].environment(6)
MPICH = RECORDINGS["mpich_block"].environment(1)
ONE_A_NODE = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"}

PLACES = {
    "torchrun below mpiexec": (OPEN_MPI | TORCHRUN, Place(3, 4, 1, 2, "host", "torchrun")),
    "srun, uneven nodes": (SLURM, Place(3, 4, 0, 1, "host", "Slurm")),
    "a batch script is no rank": (BATCH_SCRIPT, Place(0, 1, 0, 1, "host", "single process")),
    "PALS": (PALS, Place(6, 8, 2, 4, "host", "PALS")),
    "Open MPI, its daemons started by srun": (SLURM | ONE_A_NODE | OPEN_MPI, Place(3, 8, 3, 4, "host", "Open MPI")),
    "srun --mpi=pmi2": (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"}, Place(3, 4, 0, 1, "host", "MPICH")),
}


@pytest.mark.parametrize("case", PLACES)
def test_place(case):
    environment, place = PLACES[case]
    assert ranks.find(environment, "host") == place


CONTRADICTIONS = {
    "two launchers": (
        OPEN_MPI | MPICH,
        "Open MPI says rank 3 of 8, local rank 3 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
        "OMPI_COMM_WORLD_LOCAL_RANK), but MPICH says rank 1 of 4, local rank 1 (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID)",
    ),
    "no number": (TORCHRUN | {"RANK": "first"}, "RANK: expected a whole number, not 'first'"),
    "no local rank": (
        {"RANK": "1", "WORLD_SIZE": "2"},
        "RANK and WORLD_SIZE says rank 1 of 2 (RANK, WORLD_SIZE): nothing tells the local rank; launch by torchrun, "
        "srun or mpiexec",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_cannot_be_is_refused_in_one_line(case):
    environment, text = CONTRADICTIONS[case]
    with pytest.raises(ValueError) as caught:
        ranks.find(environment)
    assert str(caught.value) == text


def test_launchers_variables_are_taken_away():
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN", "RANKING": "x", "PBS_NODEFILE": "/n"}
    assert ranks.without_launchers(TORCHRUN | PALS | OPEN_MPI | MPICH | others) == others
