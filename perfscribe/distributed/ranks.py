"""The place of this process in a launch: rank, world size and local rank from launchers' variables.

Everything here is a pure function of a mapping of variables, named as by torchrun, Cray PALS, Open MPI, MPICH (Hydra)
and Slurm's srun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Environment = Mapping[str, str]

SINGLE = "single process"
TORCHRUN, PLAIN, PALS, OPEN_MPI, MPICH, SLURM = "torchrun", "RANK and WORLD_SIZE", "PALS", "Open MPI", "MPICH", "Slurm"
# Variables of rank, world size, local rank and local world size by source, innermost launcher first; of several names
# the first that is set counts. srun --mpi=pmi2 sets MPICH's too, but the local rank is only in Slurm's.
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_VARIABLES: dict[str, tuple[str, str, str, str]] = {
    TORCHRUN: _TORCH,
    PLAIN: _TORCH,
    PALS: ("PALS_RANKID PMI_RANK", "PMI_SIZE", "PALS_LOCAL_RANKID PMI_LOCAL_RANK", "PALS_LOCAL_SIZE PMI_LOCAL_SIZE"),
    OPEN_MPI: (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    MPICH: ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    SLURM: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS", "SLURM_LOCALID", ""),
}
_LAUNCHER_VARIABLE = re.compile(
    r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT))$"
    r"|(TORCHELASTIC|PALS|PMI|PMIX|OMPI|PRTE|HYDRA|SLURM)_|MPI_LOCAL"
)


@dataclass(frozen=True)
class Claim:
    """Place according to one source; None for what it does not give.

    variables: names of the variables read, for messages. tasks: per node, if Slurm gives them.
    """

    source: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    variables: tuple[str, ...] = ()
    tasks: tuple[int, ...] = ()

    def __str__(self) -> str:
        variables = f" ({', '.join(self.variables)})" if self.variables else ""
        local = "" if self.local_rank is None else f", local rank {self.local_rank}"
        return f"{self.source} says rank {self.rank} of {self.world_size}{local}{variables}"


@dataclass(frozen=True)
class Place:
    """Place of a process. local_*: among the processes of its node. None: no source gives it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    host: str
    source: str


def find(environment: Environment, host: str = "") -> Place:
    """Return the place on which all launchers' variables agree.

    Variables of a launcher that merely started another one (srun or mpiexec before torchrun, srun before mpiexec's
    daemons) describe that other launcher's processes and do not count. A process without a launcher is rank 0 of 1.
    Raises ValueError (one line) if two sources contradict each other (both are named), a variable is not a number, or
    no source gives the local rank.
    """
    claims = _innermost([claimed for source in _VARIABLES if (claimed := claim(source, environment)) is not None])
    if not claims:
        return Place(0, 1, 0, 1, host, SINGLE)
    first = claims[0]
    for other, field in product(claims[1:], ("rank", "world_size", "local_rank", "local_world_size")):
        mine, theirs = getattr(first, field), getattr(other, field)
        if None not in (mine, theirs) and mine != theirs:
            detail = f": local world size {mine} against {theirs}" if field == "local_world_size" else ""
            raise ValueError(f"{first}, but {other}{detail}")
    local_rank = next((c.local_rank for c in claims if c.local_rank is not None), None)
    if local_rank is None:
        raise ValueError(f"{first}: nothing tells the local rank; launch by torchrun, srun or mpiexec")
    local_world_size = next((c.local_world_size for c in claims if c.local_world_size is not None), None)
    return Place(first.rank, first.world_size, local_rank, local_world_size, host, first.source)


def claim(source: str, environment: Environment) -> Claim | None:
    """Return a source's claim; None without rank or world size. Raises ValueError for invalid numbers."""
    if not _owns_variables(source, environment):
        return None
    numbers, names = zip(*(_number(environment, words) for words in _VARIABLES[source]), strict=True)
    rank, world_size, local_rank, local_world_size = numbers
    if rank is None or world_size is None:
        return None
    if rank >= world_size:
        raise ValueError(f"{source}: rank {rank} ({names[0]}) of {world_size} ({names[1]})")
    tasks: tuple[int, ...] = ()
    if source == SLURM:
        tasks, node = _tasks_per_node(environment), _number(environment, "SLURM_NODEID")[0]
        local_world_size = tasks[node] if node is not None and node < len(tasks) else None
    variables = names[: 2 if local_rank is None else 3]
    return Claim(source, rank, world_size, local_rank, local_world_size, variables, tasks)


def _owns_variables(source: str, environment: Environment) -> bool:
    """Return whether the variables, some of which sources share, are this source's."""
    by_torchrun = "TORCHELASTIC_RUN_ID" in environment
    by_pals = bool({"PALS_RANKID", "PALS_LOCAL_RANKID"} & environment.keys())
    # A batch script has SLURM_PROCID too, but only a step has a step id.
    in_step = bool({"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys())
    owned = {TORCHRUN: by_torchrun, PLAIN: not by_torchrun, PALS: by_pals, MPICH: not by_pals, SLURM: in_step}
    return owned.get(source, True)


def _number(environment: Environment, names: str) -> tuple[int | None, str]:
    """Return value and name of the first variable that is set; None if none is."""
    for name in names.split():
        text = environment.get(name, "")
        if text:
            if not re.fullmatch(r"\d+", text):
                raise ValueError(f"{name}: expected a whole number, not {text!r}")
            return int(text), name
    return None, ""


def _tasks_per_node(environment: Environment) -> tuple[int, ...]:
    """Return the tasks of each node from Slurm's short form: "2(x3),1" is 2, 2, 2, 1."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not re.fullmatch(r"(\d+(\(x\d+\))?(,|$))*", text):
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE: {text!r} is no list of task counts")
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(count) for count, times in parts for _ in range(int(times or 1)))


def _innermost(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims about this process itself, without those about the launcher that started it.

    torchrun is always innermost. Slurm tasks, one per node, are another launcher's daemons if that launcher disagrees;
    several tasks per node are ranks, so that a disagreement is a contradiction and is kept.
    """
    torchrun = [c for c in claims if c.source == TORCHRUN]
    inner = [c for c in claims if c.source != SLURM]
    if torchrun or not inner:
        return torchrun or list(claims)
    slurm = [c for c in claims if c.source == SLURM]
    agrees = all((c.rank, c.world_size) == (inner[0].rank, inner[0].world_size) for c in slurm)
    return inner + [c for c in slurm if agrees or len(c.tasks) != c.world_size]


def without_launchers(environment: Environment) -> dict[str, str]:
    """Return the environment without launchers' variables, for processes started by a new launch."""
    return {name: value for name, value in environment.items() if not _LAUNCHER_VARIABLE.match(name)}


def device_index(place: Place, visible: int) -> int:
    """Return the index of this process's GPU among the visible ones.

    Raises ValueError for fewer GPUs than processes on the node; they never share one.
    """
    if place.local_rank < visible:
        return place.local_rank
    raise ValueError(f"local rank {place.local_rank}, but {visible} GPUs are visible")
