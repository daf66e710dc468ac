"""The place of this process in a launch: rank, local rank and node, as launchers' variables or MPI say.

Everything here is a pure function of a mapping of variables; mpi4py's module is handed in. Names of variables are
those of torchrun, Cray PALS, Open MPI, MPICH (Hydra) and Slurm's srun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Environment = Mapping[str, str]

SINGLE = "single process"
_LAUNCHER_VARIABLE = re.compile(
    r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT))$"
    r"|(TORCHELASTIC|PALS|PMI|PMIX|OMPI|PRTE|HYDRA|SLURM)_|MPI_LOCAL"
)


@dataclass(frozen=True)
class Claim:
    """What one source says; None where it says nothing.

    variables: where it says it, for messages. nodes: how many there are.
    """

    source: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    variables: tuple[str, ...] = ()
    nodes: int | None = None

    def __str__(self) -> str:
        said_by = f" ({', '.join(self.variables)})" if self.variables else ""
        local = "" if self.local_rank is None else f", local rank {self.local_rank}"
        return f"{self.source} says rank {self.rank} of {self.world_size}{local}{said_by}"


@dataclass(frozen=True)
class Place:
    """Where a process stands. local_*: among the processes of its node. None: no source says it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    node_rank: int | None
    host: str
    source: str


def find(environment: Environment, host: str = "", mpi: Claim | None = None) -> Place:
    """The place that all sources agree on: launchers' variables and, where given, what MPI says.

    Variables of a launcher that merely started another one (srun or mpiexec before torchrun, srun before mpiexec's
    daemons) describe that other launcher's processes and do not count. A process without a launcher is rank 0 of 1.
    ValueError, one line: two sources contradict each other (both are named), a variable is no number, or none of the
    sources knows the local rank.
    """
    claims = innermost([claim for source in SOURCES.values() if (claim := source(environment)) is not None])
    claims += [mpi] if mpi is not None else []
    if not claims:
        return Place(0, 1, 0, 1, 0, host, SINGLE)
    for other in claims[1:]:
        refuse_contradiction(claims[0], other)
    local_rank = _first(claims, "local_rank")
    if local_rank is None:
        raise ValueError(f"{claims[0]}: nothing tells the local rank; launch by torchrun, srun or mpiexec")
    first = claims[0]
    sizes = _first(claims, "local_world_size"), _first(claims, "node_rank")
    return Place(first.rank, first.world_size, local_rank, *sizes, host, first.source)


def _first(claims: Sequence[Claim], field: str) -> int | None:
    said = (getattr(claim, field) for claim in claims)
    return next((value for value in said if value is not None), None)


def refuse_contradiction(one: Claim, other: Claim) -> None:
    """ValueError naming both sources where they disagree in anything that both of them say."""
    for field in ("rank", "world_size", "local_rank", "local_world_size", "node_rank"):
        mine, theirs = getattr(one, field), getattr(other, field)
        if None not in (mine, theirs) and mine != theirs:
            word = field.replace("_", " ")
            detail = "" if field in ("rank", "world_size", "local_rank") else f": {word} {mine} against {theirs}"
            raise ValueError(f"{one}, but {other}{detail}")


def innermost(claims: Sequence[Claim]) -> list[Claim]:
    """The claims about this process itself, without those about the launcher that it was started by.

    torchrun is always innermost. Slurm tasks of which there is one a node are another launcher's daemons where that
    one says otherwise; several tasks a node are ranks, so that a disagreement is a contradiction and stays in.
    """
    torchrun = [claim for claim in claims if claim.source == "torchrun"]
    inner = [claim for claim in claims if claim.source != "Slurm"]
    if torchrun or not inner:
        return torchrun or list(claims)
    return inner + [claim for claim in claims if claim.source == "Slurm" and not _starts_daemons(claim, inner[0])]


def _starts_daemons(outer: Claim, inner: Claim) -> bool:
    agrees = (outer.rank, outer.world_size) == (inner.rank, inner.world_size)
    return not agrees and outer.nodes == outer.world_size


# --- launchers --------------------------------------------------------------------------------------------------


def _number(environment: Environment, *names: str) -> tuple[int | None, str]:
    """Value and name of the first variable that is set; (None, first name) where none is."""
    for name in names:
        text = environment.get(name, "")
        if text:
            if not re.fullmatch(r"\d+", text):
                raise ValueError(f"{name}: expected a whole number, not {text!r}")
            return int(text), name
    return None, names[0]


def _claim(
    source: str,
    environment: Environment,
    rank: Sequence[str],
    size: Sequence[str],
    local_rank: Sequence[str],
    local_size: Sequence[str] = (),
    node: Sequence[str] = (),
) -> Claim | None:
    """A claim from the first variable of each kind that is set; None where rank or size is missing."""
    rank_value, rank_name = _number(environment, *rank)
    size_value, size_name = _number(environment, *size)
    if rank_value is None or size_value is None:
        return None
    if rank_value >= size_value:
        raise ValueError(f"{source}: rank {rank_value} ({rank_name}) of {size_value} ({size_name})")
    local_value, local_name = _number(environment, *local_rank)
    return Claim(
        source,
        rank_value,
        size_value,
        local_value,
        _number(environment, *local_size)[0] if local_size else None,
        _number(environment, *node)[0] if node else None,
        (rank_name, size_name) if local_value is None else (rank_name, size_name, local_name),
    )


_TORCH = (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("GROUP_RANK",))


def from_torchrun(environment: Environment) -> Claim | None:
    """What torchrun's own variables say, which it marks by TORCHELASTIC_RUN_ID."""
    return _claim("torchrun", environment, *_TORCH) if "TORCHELASTIC_RUN_ID" in environment else None


def from_plain_variables(environment: Environment) -> Claim | None:
    """RANK and WORLD_SIZE where another program than torchrun set them; one without the other says nothing."""
    if "TORCHELASTIC_RUN_ID" in environment:
        return None
    return _claim("RANK and WORLD_SIZE", environment, *_TORCH)


def from_pals(environment: Environment) -> Claim | None:
    """Cray's mpiexec (PALS), as on Polaris; told from MPICH by its PALS_ variables."""
    if not {"PALS_RANKID", "PALS_LOCAL_RANKID"} & environment.keys():
        return None
    return _claim(
        "PALS",
        environment,
        ("PALS_RANKID", "PMI_RANK"),
        ("PMI_SIZE",),
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        ("PALS_NODEID",),
    )


def from_open_mpi(environment: Environment) -> Claim | None:
    """Open MPI's mpiexec."""
    world = "OMPI_COMM_WORLD"
    return _claim(
        "Open MPI",
        environment,
        (f"{world}_RANK",),
        (f"{world}_SIZE",),
        (f"{world}_LOCAL_RANK",),
        (f"{world}_LOCAL_SIZE",),
    )


def from_mpich(environment: Environment) -> Claim | None:
    """MPICH's and Intel MPI's Hydra; also srun --mpi=pmi2, which leaves the local rank to Slurm's variables."""
    if from_pals(environment) is not None:
        return None
    return _claim("MPICH", environment, ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",))


def from_slurm(environment: Environment) -> Claim | None:
    """Slurm's srun. A batch script has SLURM_PROCID as well, but only a step has SLURM_STEP_ID or SLURM_STEPID."""
    if not {"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys():
        return None
    claim = _claim(
        "Slurm",
        environment,
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        (),
        ("SLURM_NODEID",),
    )
    if claim is None or claim.node_rank is None:
        return claim
    tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_size = tasks[claim.node_rank] if claim.node_rank < len(tasks) else None
    return replace(claim, local_world_size=local_size, nodes=len(tasks) or None)


def expand_tasks(text: str) -> list[int]:
    """Tasks of each node from Slurm's short form: "2(x3),1" is [2, 2, 2, 1]."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE: {text!r} is no list of task counts")
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


# Innermost launcher first.
SOURCES: dict[str, Callable[[Environment], Claim | None]] = {
    "torchrun": from_torchrun,
    "RANK and WORLD_SIZE": from_plain_variables,
    "PALS": from_pals,
    "Open MPI": from_open_mpi,
    "MPICH": from_mpich,
    "Slurm": from_slurm,
}


def without_launchers(environment: Environment) -> dict[str, str]:
    """The environment without the variables that launchers set, for processes that a launch of its own starts."""
    return {name: value for name, value in environment.items() if not _LAUNCHER_VARIABLE.match(name)}


# --- MPI --------------------------------------------------------------------------------------------------------


def from_mpi_modulo(mpi: Any, device_count: int) -> Claim:
    """mpi4py's COMM_WORLD, local rank as rank modulo the number of a node's devices.

    Right only where each node is full and ranks are placed in blocks: see layout().
    """
    world = mpi.COMM_WORLD
    rank = world.Get_rank()
    return Claim("mpi4py COMM_WORLD", rank, world.Get_size(), rank % device_count)


def from_mpi_split(mpi: Any) -> Claim:
    """mpi4py's COMM_WORLD split into the processes that share memory, right under every placement."""
    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    local_rank = node.Get_rank()
    leaders = world.Split(0 if local_rank == 0 else 1, world.Get_rank())  # of the first colour: one a node
    node_rank = node.bcast(leaders.Get_rank() if local_rank == 0 else None, root=0)
    return Claim("mpi4py COMM_TYPE_SHARED", world.Get_rank(), world.Get_size(), local_rank, node.Get_size(), node_rank)


# --- devices ----------------------------------------------------------------------------------------------------


def device_index(place: Place, visible: int) -> int:
    """Number of the GPU that this process is to use, of those that it sees.

    ValueError: fewer GPUs than processes on the node; they never share one.
    """
    if place.local_rank < visible:
        return place.local_rank
    raise ValueError(f"local rank {place.local_rank}, but {visible} GPUs are visible")
