"""A process's place: contradictions of launchers are refused. Recordings: test_rank_methods.py."""

import pytest
from rank_recordings import RECORDINGS

from perfscribe.distributed import ranks

TORCHRUN = RECORDINGS["torchrun_below_srun"].environment(3)  # with those of Slurm, which started it
OPEN_MPI = RECORDINGS["open_mpi_block"].environment(3)
PALS = RECORDINGS["pals_block"].environment(6)
MPICH = RECORDINGS["mpich_block"].environment(1)


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
