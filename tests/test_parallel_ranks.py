"""A process's place, from recorded environments of each launcher and from MPI, and contradictions refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfscribe.distributed import ranks
from perfscribe.distributed.ranks import Claim, Place

# As a process of each launcher finds them; world, placement and addresses are examples.
TORCHRUN = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "GROUP_RANK": "2",
    "ROLE_RANK": "5",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "4",
    "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "40761",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "1234",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
PALS = {
    "PALS_RANKID": "6",
    "PALS_LOCAL_RANKID": "2",
    "PALS_LOCAL_SIZE": "4",
    "PALS_NODEID": "1",
    "PALS_APID": "c0ffee",
    "PMI_RANK": "6",
    "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "2",
    "PMI_LOCAL_SIZE": "4",
    "PBS_NODEFILE": "/var/spool/pbs/aux/1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
AGENT = SLURM | {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
}

PLACES = {
    "torchrun": (TORCHRUN, Place(5, 8, 1, 2, 2, "host", "torchrun")),
    "torchrun, one below each srun task": (AGENT | TORCHRUN, Place(5, 8, 1, 2, 2, "host", "torchrun")),
    "torchrun below mpiexec": (OPEN_MPI | TORCHRUN, Place(5, 8, 1, 2, 2, "host", "torchrun")),
    "srun, uneven nodes": (SLURM, Place(3, 4, 0, 1, 1, "host", "Slurm")),
    "srun of fewer tasks than the job's": (
        SLURM | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
        Place(1, 2, 0, 1, 1, "host", "Slurm"),
    ),
    "srun, cyclic placement": (
        SLURM | {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
        Place(3, 4, 1, 2, 1, "host", "Slurm"),
    ),
    "a batch script is no rank": (BATCH_SCRIPT, Place(0, 1, 0, 1, 0, "host", "single process")),
    "PALS": (PALS, Place(6, 8, 2, 4, 1, "host", "PALS")),
    "Open MPI": (OPEN_MPI, Place(3, 4, 1, 2, None, "host", "Open MPI")),
    "Open MPI, its daemons started by srun": (AGENT | OPEN_MPI, Place(3, 4, 1, 2, None, "host", "Open MPI")),
    "Open MPI in a batch script": (BATCH_SCRIPT | OPEN_MPI, Place(3, 4, 1, 2, None, "host", "Open MPI")),
    "MPICH": (MPICH, Place(1, 4, 1, 2, None, "host", "MPICH")),
    "srun --mpi=pmi2": (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"}, Place(3, 4, 0, 1, 1, "host", "MPICH")),
    "a script's own RANK and WORLD_SIZE, as srun says": (
        SLURM | {"RANK": "3", "WORLD_SIZE": "4"},
        Place(3, 4, 0, 1, 1, "host", "RANK and WORLD_SIZE"),
    ),
    "WORLD_SIZE exported alone says nothing": ({"WORLD_SIZE": "8"}, Place(0, 1, 0, 1, 0, "host", "single process")),
    "nothing": ({"HOME": "/root"}, Place(0, 1, 0, 1, 0, "host", "single process")),
}


@pytest.mark.parametrize("case", PLACES)
def test_place_from_recorded_environments(case):
    environment, place = PLACES[case]
    assert ranks.find(environment, "host") == place


CONTRADICTIONS = {
    "two launchers": (
        OPEN_MPI | MPICH,
        "Open MPI says rank 3 of 4, local rank 1 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
        "OMPI_COMM_WORLD_LOCAL_RANK), but MPICH says rank 1 of 4, local rank 1 (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID)",
    ),
    "another world": (
        SLURM | {"RANK": "3", "WORLD_SIZE": "16"},
        "RANK and WORLD_SIZE says rank 3 of 16 (RANK, WORLD_SIZE), but Slurm says rank 3 of 4, local rank 0 "
        "(SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID)",
    ),
    "another local rank": (
        SLURM | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"},
        "RANK and WORLD_SIZE says rank 3 of 4, local rank 3 (RANK, WORLD_SIZE, LOCAL_RANK), but Slurm says "
        "rank 3 of 4, local rank 0 (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID)",
    ),
    "no number": (TORCHRUN | {"RANK": "first"}, "RANK: expected a whole number, not 'first'"),
    "beyond its world": (TORCHRUN | {"RANK": "8"}, "torchrun: rank 8 (RANK) of 8 (WORLD_SIZE)"),
    "no local rank": (
        {"RANK": "1", "WORLD_SIZE": "2"},
        "RANK and WORLD_SIZE says rank 1 of 2 (RANK, WORLD_SIZE): nothing tells the local rank; launch by torchrun, "
        "srun or mpiexec",
    ),
    "no list of tasks": (
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "two"},
        "SLURM_STEP_TASKS_PER_NODE: 'two' is no list of task counts",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_cannot_be_is_refused_in_one_line(case):
    environment, text = CONTRADICTIONS[case]
    with pytest.raises(ValueError) as caught:
        ranks.find(environment)
    assert str(caught.value) == text


def test_node_or_local_size_that_disagree_are_shown():
    one = Claim("A", 1, 4, 1, 2, 0)
    with pytest.raises(ValueError, match=r"^A says .*, but B says .*: node rank 0 against 1$"):
        ranks.refuse_contradiction(one, Claim("B", 1, 4, 1, 2, 1))
    ranks.refuse_contradiction(one, Claim("B", 1, 4))


def test_task_counts():
    assert ranks.expand_tasks("2(x3),1") == [2, 2, 2, 1]
    assert ranks.expand_tasks("") == []


# --- MPI --------------------------------------------------------------------------------------------------------


class Comm:
    """mpi4py's communicator as one rank of a job with these hosts sees it."""

    def __init__(self, hosts: list[str], rank: int, members: list[int] | None = None) -> None:
        self.hosts, self.world_rank = hosts, rank
        self.members = list(range(len(hosts))) if members is None else members

    def Get_rank(self) -> int:
        return self.members.index(self.world_rank)

    def Get_size(self) -> int:
        return len(self.members)

    def Split_type(self, kind: str) -> Comm:
        assert kind == "shared"
        return Comm(
            self.hosts, self.world_rank, [m for m in self.members if self.hosts[m] == self.hosts[self.world_rank]]
        )

    def Split(self, color: int, key: int) -> Comm:
        firsts = {host: self.hosts.index(host) for host in self.hosts}
        leads = {member: member == firsts[self.hosts[member]] for member in self.members}
        assert (color, key) == (0 if leads[self.world_rank] else 1, self.world_rank)
        return Comm(self.hosts, self.world_rank, [m for m in self.members if leads[m] == leads[self.world_rank]])

    def bcast(self, value: int | None, root: int) -> int:
        """What the lowest rank of the node gives: the number of its node among the leaders."""
        leader = self.members[root]
        leaders = [self.hosts.index(host) for host in dict.fromkeys(self.hosts)]
        assert (value is None) == (self.world_rank != leader)
        return leaders.index(leader)


def mpi(hosts: list[str], rank: int) -> SimpleNamespace:
    return SimpleNamespace(COMM_WORLD=Comm(hosts, rank), COMM_TYPE_SHARED="shared")


def both_ways(hosts: list[str], devices: int) -> tuple[list[int], list[int]]:
    """Local ranks of all ranks by modulo and by split."""
    jobs = [mpi(hosts, rank) for rank in range(len(hosts))]
    by_modulo = [ranks.from_mpi_modulo(job, devices).local_rank for job in jobs]
    return by_modulo, [ranks.from_mpi_split(job).local_rank for job in jobs]


def test_rank_modulo_devices_is_right_for_full_nodes_in_blocks_alone():
    full = both_ways(["a", "a", "b", "b"], 2)
    assert full == ([0, 1, 0, 1], [0, 1, 0, 1])
    cyclic = both_ways(["a", "b", "a", "b"], 2)
    assert cyclic == ([0, 1, 0, 1], [0, 0, 1, 1])
    uneven = both_ways(["a", "a", "a", "b"], 4)
    assert uneven == ([0, 1, 2, 3], [0, 1, 2, 0])


def test_mpi_is_held_against_the_launcher():
    split = ranks.from_mpi_split(mpi(["a", "a", "b", "b"], 3))
    assert ranks.find(OPEN_MPI, "b", split) == Place(3, 4, 1, 2, 1, "b", "Open MPI")
    assert ranks.find({}, "b", split) == Place(3, 4, 1, 2, 1, "b", "mpi4py COMM_TYPE_SHARED")
    with pytest.raises(
        ValueError, match=r"^Open MPI says rank 3 of 4, .*, but mpi4py COMM_TYPE_SHARED says rank 0 of 1"
    ):
        ranks.find(OPEN_MPI, "b", ranks.from_mpi_split(mpi(["b"], 0)))


# --- for processes of our own -----------------------------------------------------------------------------------


def test_launchers_variables_are_taken_away():
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN", "RANKING": "x", "TORCH_HOME": "/t"}
    mixed = TORCHRUN | SLURM | PALS | OPEN_MPI | MPICH | others
    assert ranks.without_launchers(mixed) == others | {"PBS_NODEFILE": PALS["PBS_NODEFILE"]}


def test_each_process_has_a_gpu_of_its_own():
    place = Place(5, 8, 1, 2, 2, "host", "torchrun")
    assert ranks.device_index(place, 2) == 1
    with pytest.raises(ValueError, match=r"^local rank 1, but 1 GPUs are visible$"):
        ranks.device_index(place, 1)
