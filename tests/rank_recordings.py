"""What launchers put into the environment of each rank on several nodes, and what mpi4py said there.

Recorded by running them, or made from a launcher's documentation where `source` says so. Only the variables that a
method reads are kept; node names are made alike. A value that differs from rank to rank is a tuple in the order of
ranks, with None where a rank lacks it. Recordings with one machine's processes as two nodes say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from perfscribe.distributed import mpi_start

Value = str | tuple[str | None, ...]

EIGHT = tuple(map(str, range(8)))
FOUR = EIGHT[:4]


def layout(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """(local rank, ranks of its node) of each rank from the node of each."""
    return [(nodes[:rank].count(node), nodes.count(node)) for rank, node in enumerate(nodes)]


@dataclass(frozen=True)
class Recording:
    """Ranks of one launch.

    nodes: number of each rank's node. gpus: of each node. mpi: what mpi4py said of each rank where MPI did not see
    the launch: (rank, world size, local rank); None: it saw all ranks on their nodes.
    """

    launcher: str
    nodes: tuple[int, ...]
    variables: Mapping[str, Value]
    source: str
    gpus: int = 4
    mpi: tuple[tuple[int, int, int], ...] | None = None

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one rank."""
        own = {name: value if isinstance(value, str) else value[rank] for name, value in self.variables.items()}
        return {name: value for name, value in own.items() if value is not None}

    def said(self, rank: int) -> dict[str, mpi_start.Said]:
        """What each method says on one rank."""
        if self.mpi is None:
            claims = mpi_start.by_mpi(_world(self.nodes, rank), self.gpus)
            asked = {name: mpi_start.said(claim) for name, claim in claims.items()}
        else:
            number, world_size, local_rank = self.mpi[rank]
            asked = {
                mpi_start.MODULO: [number, world_size, number % self.gpus],
                mpi_start.SPLIT: [number, world_size, local_rank],
            }
        return {**asked, **mpi_start.by_variables(self.environment(rank))}


def _world(nodes: tuple[int, ...], rank: int) -> Any:
    """mpi4py's module as this rank of a launch sees it, as far as it is asked for ranks."""
    local_rank, local_size = layout(nodes)[rank]
    shared = SimpleNamespace(Get_rank=lambda: local_rank, Get_size=lambda: local_size)
    world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: len(nodes), Split_type=lambda kind: shared)
    return SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=None)


def _pals(local_rank: tuple[str, ...], node: tuple[str, ...]) -> dict[str, Value]:
    return {
        "PALS_RANKID": EIGHT,
        "PALS_LOCAL_RANKID": local_rank,
        "PALS_LOCAL_SIZE": "4",
        "PALS_NODEID": node,
        "PMI_RANK": EIGHT,
        "PMI_SIZE": "8",
        "PMI_LOCAL_RANK": local_rank,
        "PMI_LOCAL_SIZE": "4",
    }


def _slurm(tasks: str, local_rank: tuple[str, ...], node: tuple[str, ...]) -> dict[str, Value]:
    count = str(len(local_rank))
    return {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": EIGHT[: len(local_rank)],
        "SLURM_LOCALID": local_rank,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": count,
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }


def _open_mpi(local_rank: tuple[str, ...], local_size: Value) -> dict[str, Value]:
    world = "OMPI_COMM_WORLD"
    return {
        f"{world}_RANK": EIGHT[: len(local_rank)],
        f"{world}_SIZE": str(len(local_rank)),
        f"{world}_LOCAL_RANK": local_rank,
        f"{world}_LOCAL_SIZE": local_size,
    }


def _daemons(of: tuple[bool, ...]) -> dict[str, Value]:
    """Slurm's variables where srun started Open MPI's daemon on the second node, which hands them on to its ranks."""
    step = {"STEP_ID": "0", "STEP_NUM_TASKS": "1", "STEP_TASKS_PER_NODE": "1"}
    variables: dict[str, Value] = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    return variables | {f"SLURM_{name}": tuple(value if one else None for one in of) for name, value in step.items()}


def _mpich(local_rank: tuple[str, ...], local_size: Value) -> dict[str, Value]:
    return {"PMI_RANK": FOUR, "PMI_SIZE": "4", "MPI_LOCALRANKID": local_rank, "MPI_LOCALNRANKS": local_size}


IN_BLOCKS = (EIGHT[:4] * 2, (0, 0, 0, 0, 1, 1, 1, 1))
IN_TURNS = (("0", "0", "1", "1", "2", "2", "3", "3"), (0, 1) * 4)
THREE_AND_ONE = (("0", "1", "2", "0"), (0, 0, 0, 1))
_BLOCK_NODES, _CYCLIC_NODES = tuple(map(str, IN_BLOCKS[1])), tuple(map(str, IN_TURNS[1]))
_PALS_SOURCE = "made from the documentation of ALCF's machines"
_SLURM_SOURCE = "recorded: Slurm 22.05.8, two nodes, srun --mpi=pmix"
_OPEN_MPI_SOURCE = "recorded: Open MPI 5.0.11 in a batch job of Slurm 22.05.8, two nodes"
_MPICH_SOURCE = "recorded: MPICH 5.0.2, one machine under two names; mpi4py's ranks as on two machines"
# Three and one GPU would be needed there, too; Polaris and most clusters have four on each node.
RECORDINGS: dict[str, Recording] = {
    "pals_block": Recording("pals", IN_BLOCKS[1], _pals(IN_BLOCKS[0], _BLOCK_NODES), _PALS_SOURCE),
    "pals_cyclic": Recording("pals", IN_TURNS[1], _pals(IN_TURNS[0], _CYCLIC_NODES), _PALS_SOURCE),
    "slurm_uneven": Recording(
        "slurm",
        THREE_AND_ONE[1],
        _slurm("3,1", THREE_AND_ONE[0], ("0", "0", "0", "1")),
        f"{_SLURM_SOURCE} -m plane=3",
    ),
    "open_mpi_block": Recording(
        "open_mpi",
        IN_BLOCKS[1],
        _open_mpi(IN_BLOCKS[0], "4") | _daemons((False,) * 4 + (True,) * 4),
        f"{_OPEN_MPI_SOURCE}, --map-by slot",
    ),
    "mpich_block": Recording("mpich", (0, 0, 1, 1), _mpich(("0", "1", "0", "1"), "2"), _MPICH_SOURCE, gpus=2),
    "torchrun_below_srun": Recording(
        "torchrun",
        (0, 0, 1, 1),
        {
            "RANK": FOUR,
            "WORLD_SIZE": "4",
            "LOCAL_RANK": ("0", "1", "0", "1"),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": ("0", "0", "1", "1"),
            "TORCHELASTIC_RUN_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": ("0", "0", "1", "1"),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": ("0", "0", "1", "1"),
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        },
        "recorded: torch 2.13.0, one torchrun for each of two tasks of Slurm 22.05.8, srun --mpi=pmix",
        gpus=2,
        mpi=((0, 2, 0), (0, 2, 0), (1, 2, 0), (1, 2, 0)),
    ),
}
