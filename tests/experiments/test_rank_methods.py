"""Rank methods: recorded environments and tables; real ranks below torchrun and mpiexec."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import rank_recordings
import torch

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.distributed import launch, launchers, mpi_start, ranks
from perfscribe.experiments.rank_methods import measure
from perfscribe.experiments.rank_methods.program import Adam

RECORDED = rank_recordings.RECORDINGS
SIZES = dict.fromkeys(measure.SIZES, 1) | {"samples": 32, "target_length": 4, "features": 16, "d_ff": 16}
SIZES |= {"batch": 4, "epochs": 2, "warmup_steps": 3}


def truth(nodes: Sequence[int]) -> list[list[int]]:
    """(rank, world size, local rank) of every rank from the node of each."""
    return [[rank, len(nodes), local] for rank, (local, _) in enumerate(rank_recordings.layout(nodes))]


@pytest.mark.parametrize("name", RECORDED)
def test_what_each_method_says_in_recorded_environments(name):
    """The launcher's own variables are right everywhere, the split where MPI was started, the modulus in blocks too.

    What every rank of a launch uses comes to the same, also where srun started torchrun or Open MPI's daemons.
    """
    one = RECORDED[name]
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
    monkeypatch.setattr(measure.binding, "granted", lambda: (0, 1, 2))
    monkeypatch.setattr(measure.binding, "gpu_cores", lambda: [])
    with pytest.raises(Unsupported, match=r"^cores 8-9 are not granted here: 0-2 are$"):
        measure.run(bound(cpu_bind="list:0,1:8,9"))
    with pytest.raises(Unsupported, match=r"^nothing tells which cores are nearest to the GPUs$"):
        measure.run(bound(cpu_bind="nearest"))
    with pytest.raises(ValueError, match=r"^cpu-bind 'list:0': 1 bindings for 2 ranks$"):
        measure.run(bound(cpu_bind="list:0"))


def test_adam_is_adam():
    torch.manual_seed(0)
    ours = [torch.rand(5, 3), torch.rand(7)]
    theirs = [one.clone() for one in ours]
    optimizers = Adam(ours, 1e-2), torch.optim.Adam(theirs, 1e-2)
    for _ in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = other.grad = torch.rand_like(mine) - 0.5
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


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


@pytest.mark.slow
def test_ranks_below_mpiexec(worker_groups):
    need_open_mpi()
    right = truth([0] * 2)
    losses = set()
    for method in measure.METHODS_OF["open_mpi"]:
        found = measure.run(cell("open_mpi", method))
        for name in mpi_start.METHODS:
            asks = name in (mpi_start.MODULO, mpi_start.SPLIT, "open_mpi")
            assert found.series[f"said_{name}"] == (right if asks else [None] * 2), name
        assert len(found.samples["epoch_s"]) == 2 and found.samples["training_s"][0] >= max(found.samples["epoch_s"])
        assert found.values["variables_left"] == 0
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
