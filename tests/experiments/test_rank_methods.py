"""Rank methods: recorded environments and tables; real ranks below torchrun and mpiexec."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from perfscribe import config
from perfscribe.base import cpu_sets
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.distributed import launch, launchers, mpi_start, ranks
from perfscribe.experiments.polaris.rank_methods import levels, measure

# What launchers put into the environment of each rank on several nodes: the variables that a method reads. A value that
# differs from rank to rank is a tuple in the order of ranks, with None where a rank lacks it.
Value = str | tuple[str | None, ...]
FOUR, EIGHT = tuple("0123"), tuple("01234567")
# The node of each rank.
BLOCKS, TURNS, UNEVEN, PAIRS = (0, 0, 0, 0, 1, 1, 1, 1), (0, 1) * 4, (0, 0, 0, 1), (0, 0, 1, 1)


def layout(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """(local rank, ranks of its node) of each rank from the node of each."""
    return [(nodes[:rank].count(node), nodes.count(node)) for rank, node in enumerate(nodes)]


def local(nodes: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(rank) for rank, _ in layout(nodes))


@dataclass(frozen=True)
class Recording:
    """Ranks of one launch.

    gpus: of each node; Polaris and most clusters have four. mpi: what mpi4py said of each rank where MPI did not see
    the launch: (rank, world size, local rank); None: it saw all ranks on their nodes.
    """

    launcher: str
    nodes: tuple[int, ...]
    variables: Mapping[str, Value]
    gpus: int = 4
    mpi: tuple[tuple[int, int, int], ...] | None = None

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one rank."""
        own = {name: value if isinstance(value, str) else value[rank] for name, value in self.variables.items()}
        return {name: value for name, value in own.items() if value is not None}

    def said(self, rank: int) -> dict[str, mpi_start.Answer]:
        """Answers of all methods on one rank, by method."""
        if self.mpi is None:
            claims = mpi_start.by_mpi(_world(self.nodes, rank), self.gpus)
            asked = {name: mpi_start.as_json(claim) for name, claim in claims.items()}
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


def named(prefix: str, **variables: Value) -> dict[str, Value]:
    return {f"{prefix}_{name}": value for name, value in variables.items()}


def _pals(nodes: tuple[int, ...]) -> Recording:
    """Made from the documentation of ALCF's machines."""
    ranks_of_node = {"LOCAL_SIZE": "4", "NODEID": tuple(map(str, nodes))}
    pals = named("PALS", RANKID=EIGHT, LOCAL_RANKID=local(nodes), **ranks_of_node)
    return Recording("pals", nodes, pals | named("PMI", RANK=EIGHT, SIZE="8", LOCAL_RANK=local(nodes), LOCAL_SIZE="4"))


ON_SECOND = (None,) * 4  # not on the first node
RECORDINGS: dict[str, Recording] = {
    "pals_block": _pals(BLOCKS),
    "pals_cyclic": _pals(TURNS),
    # Recorded: Slurm 22.05.8, two nodes, srun --mpi=pmix -m plane=3.
    "slurm_uneven": Recording(
        "slurm",
        UNEVEN,
        named("SLURM", PROCID=FOUR, LOCALID=local(UNEVEN), NODEID=tuple(map(str, UNEVEN)), NTASKS="4")
        | named("SLURM_STEP", ID="0", NUM_TASKS="4", TASKS_PER_NODE="3,1"),
    ),
    # Recorded: Open MPI 5.0.11 in a batch job of Slurm 22.05.8, two nodes, --map-by slot.
    # srun started its daemon on the second node, which hands Slurm's variables on to its ranks.
    "open_mpi_block": Recording(
        "open_mpi",
        BLOCKS,
        named("OMPI_COMM_WORLD", RANK=EIGHT, SIZE="8", LOCAL_RANK=local(BLOCKS), LOCAL_SIZE="4")
        | named("SLURM", PROCID="0", LOCALID="0", NODEID="0")
        | named("SLURM_STEP", ID=ON_SECOND + ("0",) * 4, NUM_TASKS=ON_SECOND + ("1",) * 4)
        | named("SLURM_STEP", TASKS_PER_NODE=ON_SECOND + ("1",) * 4),
    ),
    # Recorded: MPICH 5.0.2, one machine under two names; mpi4py's ranks as on two machines.
    "mpich_block": Recording(
        "mpich",
        PAIRS,
        named("PMI", RANK=FOUR, SIZE="4") | named("MPI", LOCALRANKID=local(PAIRS), LOCALNRANKS="2"),
        gpus=2,
    ),
    # Recorded: torch 2.13.0, one torchrun for each of two tasks of Slurm 22.05.8, srun --mpi=pmix.
    "torchrun_below_srun": Recording(
        "torchrun",
        PAIRS,
        {"RANK": FOUR, "WORLD_SIZE": "4", "GROUP_RANK": tuple("0011"), "TORCHELASTIC_RUN_ID": "7"}
        | named("LOCAL", RANK=local(PAIRS), WORLD_SIZE="2")
        | named("SLURM", PROCID=tuple("0011"), LOCALID="0", NODEID=tuple("0011"), NTASKS="2")
        | named("SLURM_STEP", ID="0", NUM_TASKS="2", TASKS_PER_NODE="1(x2)"),
        gpus=2,
        mpi=((0, 2, 0), (0, 2, 0), (1, 2, 0), (1, 2, 0)),
    ),
}
SIZES = dict.fromkeys(measure.SIZES, 1) | {"samples": 32, "target_length": 4, "features": 16, "d_ff": 16}
SIZES |= {"batch": 4, "epochs": 2, "warmup_steps": 3}


def truth(nodes: Sequence[int]) -> list[list[int]]:
    """(rank, world size, local rank) of every rank from the node of each."""
    return [[rank, len(nodes), local] for rank, (local, _) in enumerate(layout(nodes))]


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_each_method_says_in_recorded_environments(name):
    """The launcher's own variables are right everywhere, the split where MPI was started, the modulus in blocks too.

    What every rank of a launch uses comes to the same, also where srun started torchrun or Open MPI's daemons.
    """
    one = RECORDINGS[name]
    said = [one.said(rank) for rank in range(len(one.nodes))]
    right = {method for method in said[0] if [of[method] for of in said] == truth(one.nodes)}
    assert one.launcher in right
    assert (mpi_start.SPLIT in right) == (one.mpi is None)
    assert (mpi_start.MODULO in right) == (one.mpi is None and name.endswith("block"))
    if name == "pals_cyclic":  # ranks dealt out in turns share GPUs by the modulus
        assert [of[mpi_start.MODULO][2] for of in said] == [0, 1, 2, 3, 0, 1, 2, 3]
    places = [ranks.find(one.environment(rank)) for rank in range(len(one.nodes))]
    assert [[p.rank, p.world_size, p.local_rank] for p in places] == truth(one.nodes)


def bound(**factors) -> Cell:
    return Cell({"part": "bound", "machine": "this machine", "launcher": "open_mpi", "world_size": 2, **factors})


def test_bindings_that_cannot_be(monkeypatch):
    monkeypatch.setattr(launchers, "require", lambda launcher: None)
    monkeypatch.setattr(measure.cpu_sets, "granted", lambda: (0, 1, 2))
    monkeypatch.setattr(measure.binding, "gpu_cores", lambda: [])
    with pytest.raises(Unsupported, match=r"^cores 8-9 are not granted here: 0-2 are$"):
        measure.run(bound(cpu_bind="list:0,1:8,9"))
    with pytest.raises(Unsupported, match=r"^nothing tells which cores are nearest to the GPUs$"):
        measure.run(bound(cpu_bind="nearest"))
    with pytest.raises(ValueError, match=r"^cpu-bind 'list:0': 1 bindings for 2 ranks$"):
        measure.run(bound(cpu_bind="list:0"))


def cell(launcher: str, method: str, ranks: int = 2) -> Cell:
    factors = {"part": "launched", "launcher": launcher, "method": method, "backend": "gloo", "device": "cpu"}
    return Cell({**factors, "world_size": ranks, **SIZES})


@pytest.fixture
def worker_groups(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launch.dismiss()
    yield
    launch.dismiss()


def need_open_mpi() -> None:
    try:
        launchers.require("open_mpi")
    except Unsupported as error:
        pytest.skip(str(error))
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")


def test_one_rank_is_timed_alone_and_once_by_each_launcher() -> None:
    gpu = config.resolve({}, "gpu")["experiments"]["rank_methods"]
    launched = [one for one in levels.cells(gpu) if one["part"] == measure.LAUNCHED]
    assert {(one["world_size"], one.requires[0]) for one in launched} == {(1, "cuda:2"), (2, "cuda:2"), (4, "cuda:4")}
    assert [one["launcher"] for one in launched if one["world_size"] == 1] == gpu["launcher"]


@pytest.mark.slow
def test_ranks_below_mpiexec(worker_groups):
    need_open_mpi()
    right = truth([0] * 2)
    losses = set()
    for method in levels.METHODS_OF["open_mpi"]:
        found = measure.run(cell("open_mpi", method))
        for name in mpi_start.METHODS:
            asks = name in (mpi_start.MODULO, mpi_start.SPLIT, "open_mpi")
            assert found.series[f"said_{name}"] == (right if asks else [None] * 2), name
        assert len(found.samples["epoch_s"]) == 2 and found.samples["training_s"][0] >= max(found.samples["epoch_s"])
        assert found.values["variables_left"] == 0
        # Bound in every second epoch, and free again for the next method.
        all_cores = cpu_sets.granted()
        assert found.series["mask"] == [cpu_sets.mask(all_cores)] * 2 and found.samples["bound_training_s"][0] > 0
        assert found.series["bound_mask"] == [cpu_sets.mask(cores) for cores in cpu_sets.even(all_cores, 2)]
        losses.add(found.values["final_loss"])
    assert len(losses) == 1  # whoever says so, the same ranks train the same model on the same samples
    assert len(launch._WAITING) == 1


@pytest.mark.slow
def test_ranks_below_torchrun(worker_groups):
    found = measure.run(cell("torchrun", "torchrun"))
    assert found.series["said_torchrun"] == truth([0] * 2)
    assert found.series["said_open_mpi"] == [None] * 2
    alone = [0, 1, 0] if find_spec("mpi4py") else "no mpi4py"
    assert found.series["said_mpi4py_split_type"] == [alone] * 2


def test_four_ranks_of_our_own(worker_groups):
    found = measure.run(cell("perfscribe", "torchrun", 4))
    assert found.series["said_torchrun"] == truth([0] * 4)
    assert found.series["said_mpi4py_modulo"] == [mpi_start.NOT_ASKED] * 4
    with pytest.raises(Exception, match=r"ValueError: slurm says None, the launch \[\d, 4, \d\]"):
        measure.run(cell("perfscribe", "slurm", 4))


@pytest.mark.slow
def test_open_mpi_grants_what_is_asked_for_and_says_why_it_fails(worker_groups, monkeypatch):
    need_open_mpi()
    found = measure.run(bound(cpu_bind="even", world_size=4))
    assert found.series["granted"] == found.series["asked"] and len(found.series["asked"]) == 4
    monkeypatch.setattr(launchers, "AFFINITY", (sys.executable, "-c", "import sys; sys.exit('no cores today')"))
    with pytest.raises(RuntimeError, match=r"^open_mpi left with exit code 1: .*no cores today"):
        measure.run(bound(cpu_bind="even"))


TORCHRUN = RECORDINGS["torchrun_below_srun"].environment(3)  # with those of Slurm, which started it
OPEN_MPI = RECORDINGS["open_mpi_block"].environment(3)
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
