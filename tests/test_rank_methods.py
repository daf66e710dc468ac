"""Rank methods: recorded environments and tables; real ranks below torchrun and mpiexec."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import rank_recordings

from perfscribe import config
from perfscribe.base import registry
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.distributed import launchers, mpi_start, ranks
from perfscribe.experiments.rank_methods import measure, polaris, show
from perfscribe.plan import plan
from perfscribe.records import scrub
from perfscribe.records.records import Record
from perfscribe.show import tables

ROOT = Path(__file__).resolve().parents[1]
RECORDED = rank_recordings.RECORDINGS
SIZES = {
    "samples": 32,
    "source_length": 1,
    "target_length": 4,
    "features": 16,
    "layers": 1,
    "d_ff": 16,
    "batch": 4,
    "epochs": 2,
    "warmup_steps": 3,
}
HOMEWORK = {
    "samples": 2048,
    "source_length": 1,
    "target_length": 20,
    "features": 512,
    "layers": 6,
    "d_ff": 2048,
    "batch": 32,
    "epochs": 10,
}


def truth(nodes: Sequence[int]) -> list[list[int]]:
    """(rank, world size, local rank) of every rank from the node of each."""
    return [[rank, len(nodes), local] for rank, (local, _) in enumerate(rank_recordings.layout(nodes))]


def planned(preset: str) -> list[Cell]:
    """The cells of the preset alone, without those of preset gpu that it lists as skipped."""
    cells = plan.planned_cells(config.load(ROOT / "config.yaml"), "rank_methods", preset)
    return [cell for cell in cells if not cell.skip.startswith("preset")]


# --- recorded environments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_the_launchers_own_variables_are_right_wherever_they_were_recorded(name):
    one = RECORDED[name]
    said = [one.said(rank)[one.launcher] for rank in range(len(one.nodes))]
    assert said == truth(one.nodes)


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "slurm_pmi2"])
def test_places_are_found_in_recorded_environments(name):
    """What every rank of a launch uses comes to the same, also where srun started torchrun or Open MPI's daemons."""
    one = RECORDED[name]
    places = [ranks.find(one.environment(rank)) for rank in range(len(one.nodes))]
    assert [[p.rank, p.world_size, p.local_rank] for p in places] == truth(one.nodes)


def test_the_modulus_is_right_in_blocks_alone_and_the_split_wherever_mpi_was_started():
    for name, one in RECORDED.items():
        said = [one.said(rank) for rank in range(len(one.nodes))]
        right = {m: [of[m] for of in said] == truth(one.nodes) for m in (mpi_start.MODULO, mpi_start.SPLIT)}
        assert right[mpi_start.MODULO] == (one.mpi is None and name.endswith("block")), name
        assert right[mpi_start.SPLIT] == (one.mpi is None), name


def test_ranks_dealt_out_in_turns_share_gpus_by_the_modulus():
    one = RECORDED["pals_cyclic"]
    modulo = [one.said(rank)[mpi_start.MODULO][2] for rank in range(8)]
    assert modulo == [0, 1, 2, 3, 0, 1, 2, 3]


# --- cells --------------------------------------------------------------------------------------------------------


def test_cells():
    tiny, cpu, gpu = map(planned, ("tiny", "cpu", "gpu"))
    assert [c["launcher"] for c in tiny if c.factors["part"] == "launched"] == ["perfscribe"]
    pairs = [(c["launcher"], c["method"]) for c in cpu if c.factors["part"] == "launched"]
    assert pairs[:4] == [
        ("torchrun", "torchrun"),
        ("open_mpi", "mpi4py_modulo"),
        ("open_mpi", "mpi4py_split_type"),
        ("open_mpi", "open_mpi"),
    ]
    launched = [c for c in gpu if c.factors["part"] == "launched"]
    assert {c["launcher"] for c in launched} == {"torchrun", "open_mpi", "mpich", "pals", "slurm"}
    assert {c.requires for c in launched if c["launcher"] != "slurm"} == {("cuda:4",)}
    assert {c.requires for c in launched if c["launcher"] == "slurm"} == {("cuda:4", "srun_mpi")}
    homework = {"samples": 2048, "features": 512, "layers": 6, "d_ff": 2048, "batch": 32, "epochs": 10}
    assert all(homework.items() <= c.factors.items() for c in launched)
    for cells in (tiny, cpu, gpu):
        assert [c["cpu_bind"] for c in cells if c.factors.get("machine") == polaris.NAME] == list(polaris.BINDINGS)
        launches = [c.cost for c in cells if c.factors["part"] == "launched" and c["launcher"] == "open_mpi"]
        assert len(set(launches)) <= 1  # so that a launch's methods follow each other and share its ranks


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


def test_gpus_of_one_numa_node_share_its_cores(monkeypatch):
    monkeypatch.setattr(measure.binding, "granted", lambda: tuple(range(6)))
    near = [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]
    assert measure._asked("nearest", 3, near) == [(0, 1), (4, 5), (2, 3)]


def published(records: list[Record]) -> dict[str, object]:
    rows = by_id(records)["polaris.rank_methods"].ok
    return dict(zip(rows["method"], rows["published_s"], strict=True))


def test_published_times_stand_beside_the_homeworks_workload_alone():
    theirs = {"mpi4py, rank mod devices": 4.5, "mpi4py, COMM_TYPE_SHARED": 4.61}
    assert published(homework_records()) == {"torchrun": "none", **theirs}
    assert published(all_records()) == {"torchrun": "none"} | dict.fromkeys(theirs, "another workload")
    for name, level in HOMEWORK.items():
        (smaller,) = published([homework(launched("open_mpi", "mpi4py_modulo"), **{name: level - 1})]).values()
        assert smaller == "another workload", name


# --- tables -------------------------------------------------------------------------------------------------------


def launched(launcher: str, method: str, training_s: float = 2.0, said: dict | None = None) -> Record:
    nothing = dict.fromkeys(mpi_start.METHODS, [None] * 4)
    of = nothing | {method: truth([0] * 4)} | (said or {})
    factors = {"part": "launched", "launcher": launcher, "method": method, "world_size": 4, "backend": "gloo", **SIZES}
    return Record(
        "rank_methods",
        factors,
        "ok",
        "",
        "measured",
        samples={"training_s": [[training_s]], "epoch_s": [[1.5, 0.5]]},
        values={"parameters": 1, "final_loss": 0.5, "gpus_per_node": 4},
        series={
            "node": [0] * 4,
            "host": ["somewhere"] * 4,
            "device": ["cpu"] * 4,
            "mask": ["0x3", "0x300", "0x30000", "0x3000000"],
            "training_s_by_rank": [training_s] * 4,
            **{f"said_{name}": one for name, one in of.items()},
        },
        environments=["e"],
    )


def computed(cell: Cell) -> Record:
    found = measure.run(cell)
    return Record(
        "rank_methods", dict(cell.factors), "ok", "", "measured", values=found.values, series=found.series,
        environments=["e"],
    )  # fmt: skip


def homework(record: Record, **others: int) -> Record:
    """The record as one of the homework's own sizes, samples and epochs, but for the others."""
    return replace(record, factors={**record.factors, **HOMEWORK, **others})


def homework_records() -> list[Record]:
    return [homework(record) if record.factors["part"] == "launched" else record for record in all_records()]


def here(granted: list[str], gpu_cores: list[str]) -> Record:
    series = {"asked": ["0x1", "0x2"], "granted": granted, "gpu_cores": gpu_cores}
    cell = bound(cpu_bind="list:0:1")
    return Record("rank_methods", dict(cell.factors), "ok", "", "measured", series=series, environments=["e"])


def all_records() -> list[Record]:
    alone = dict.fromkeys((mpi_start.MODULO, mpi_start.SPLIT), [[0, 1, 0]] * 4)
    both = dict.fromkeys((mpi_start.MODULO, mpi_start.SPLIT, "open_mpi"), truth([0] * 4))
    return [
        launched("torchrun", "torchrun", 2.5, alone),
        launched("open_mpi", "mpi4py_modulo", 2.0, both),
        launched("open_mpi", "mpi4py_split_type", 3.0, both),
        lost(launched("slurm", "slurm")),
        *(computed(c) for c in planned("tiny") if c.cost == 0.0),
        here(["0x1", "0x3"], ["0,2-3", "0"]),
    ]


def lost(record: Record, status: str = "unsupported", reason: str = "not within a Slurm job") -> Record:
    return replace(record, status=status, reason=reason, samples={}, values={}, series={})


def by_id(records: list[Record]) -> dict[str, tables.Table]:
    return {table.id: table for table in show.tables({"rank_methods": records})}


def test_it_makes_what_it_declares():
    shown = by_id(all_records())
    assert list(registry.shown("rank_methods", ROOT).tables) == list(shown)
    assert all(len(table.ok) >= 3 for table in shown.values())


def test_each_rank_has_a_row_with_its_cores_and_its_launchs_time():
    rows = by_id(all_records())["polaris.rank_methods"].frame
    assert list(rows["rank"]) == [0, 1, 2, 3] * 3 + ["all"]
    modulo = rows[rows["method"] == "mpi4py, rank mod devices"].iloc[1]
    assert (modulo["local_rank"], modulo["mask"], modulo["cores"], modulo["cores_count"]) == (1, "0x300", "8-9", 2)
    assert modulo["agreement"] == "as mpi4py, COMM_TYPE_SHARED, Open MPI"
    assert (modulo["training_s"], modulo["samples_per_s"]) == (2.0, 32.0)
    assert (modulo["first_epoch_s"], modulo["later_epoch_s"]) == (1.5, 0.5)
    assert rows.iloc[0]["agreement"].startswith("unlike mpi4py, rank mod devices: rank 0 of 1; ")


def test_hosts_are_not_published():
    (found, *_) = all_records()
    private = scrub.Private()
    series = scrub.scrub_json({"series": found.series}, private)["series"]
    shown = by_id([replace(found, series=series)])["polaris.rank_methods"].frame
    assert set(shown["host"]) == {scrub.HOST} and list(shown["rank"]) == [0, 1, 2, 3]


def test_bindings_granted_and_near():
    rows = by_id(all_records())["polaris.rank_bindings"].frame
    seed = rows[rows["cpu_bind"] == polaris.HOMEWORK]
    assert list(seed["asked_mask"]) == list(seed["published_mask"]) == ["0x3", "0x300", "0x30000", "0x3000000"]
    assert set(seed["nearness"]) == {"anti-affine"} and set(seed["as_asked"]) == {"yes"}
    own = rows[rows["machine"] == "this machine"]
    assert list(own["as_asked"]) == ["yes", "no"] and list(own["nearness"]) == ["near", "partly near"]


def test_bindings_without_a_gpu():
    rows = by_id([here(["0x1", "0x2"], [])])["polaris.rank_bindings"].frame
    assert set(rows["gpu"]) == set(rows["nearness"]) == {"no GPU"}


@pytest.mark.parametrize("status", ["unsupported", "skipped", "failed"])
def test_nothing_measured(status):
    for table in by_id([lost(record, status, "why") for record in all_records()]).values():
        assert set(table.frame["status"]) == {status}


# --- processes ----------------------------------------------------------------------------------------------------


def test_what_is_taken_out_of_a_ranks_environment():
    names = ["PALS_RANKID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
    environment = dict.fromkeys([*names, "PMIX_RANK", "HOME", "RANK"], "9")
    claim = ranks.Claim("", 2, 4, 0, 2)
    assert mpi_start.clean(environment, claim) == sorted(names)
    assert environment == {
        "PMIX_RANK": "9",
        "HOME": "9",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_adam_is_adam():
    """Kingma and Ba, algorithm 1; PyTorch's own class would import the compiler."""
    import torch

    from perfscribe.experiments.rank_methods.training import Adam

    torch.manual_seed(0)
    ours = [torch.rand(5, 3), torch.rand(7)]
    expected, means, squares = ([one.clone() * keep for one in ours] for keep in (1, 0, 0))
    optimizer = Adam(ours, 1e-2)
    for step in range(1, 5):
        for number, mine in enumerate(ours):
            mine.grad = torch.rand_like(mine) - 0.5
            means[number] = 0.9 * means[number] + 0.1 * mine.grad
            squares[number] = 0.999 * squares[number] + 0.001 * mine.grad**2
            root = (squares[number] / (1 - 0.999**step)).sqrt() + 1e-8
            expected[number] -= 1e-2 * means[number] / (1 - 0.9**step) / root
        optimizer.step()
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other)


def cell(launcher: str, method: str) -> Cell:
    factors = {"part": "launched", "launcher": launcher, "method": method, "backend": "gloo", "device": "cpu"}
    return Cell({**factors, "world_size": 4, **SIZES})


@pytest.fixture
def worker_groups(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    measure.close()
    yield
    measure.close()


def need_open_mpi() -> None:
    try:
        launchers.require("open_mpi")
    except Unsupported as error:
        pytest.skip(str(error))
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")


@pytest.mark.slow
def test_four_ranks_below_mpiexec(worker_groups):
    need_open_mpi()
    right = truth([0] * 4)
    losses = set()
    for method in measure.METHODS_OF["open_mpi"]:
        found = measure.run(cell("open_mpi", method))
        for name in mpi_start.METHODS:
            asks = name in (mpi_start.MODULO, mpi_start.SPLIT, "open_mpi")
            assert found.series[f"said_{name}"] == (right if asks else [None] * 4), name
        assert len(found.samples["epoch_s"]) == 2 and found.samples["training_s"][0] >= max(found.samples["epoch_s"])
        assert found.values["variables_left"] == 0
        losses.add(found.values["final_loss"])
    assert len(losses) == 1  # whoever says so, the same ranks train the same model on the same samples
    assert len(measure._GROUPS) == 1


@pytest.mark.slow
def test_four_ranks_below_torchrun(worker_groups):
    found = measure.run(cell("torchrun", "torchrun"))
    assert found.series["said_torchrun"] == truth([0] * 4)
    assert found.series["said_open_mpi"] == [None] * 4
    alone = [0, 1, 0] if find_spec("mpi4py") else "no mpi4py"
    assert found.series["said_mpi4py_split_type"] == [alone] * 4


def test_four_ranks_of_our_own(worker_groups):
    found = measure.run(cell("perfscribe", "torchrun"))
    assert found.series["said_torchrun"] == truth([0] * 4)
    assert found.series["said_mpi4py_modulo"] == [mpi_start.NOT_ASKED] * 4
    with pytest.raises(Exception, match=r"ValueError: slurm says None, the launch \[\d, 4, \d\]"):
        measure.run(cell("perfscribe", "slurm"))


@pytest.mark.slow
def test_open_mpi_grants_what_is_asked_for(worker_groups):
    need_open_mpi()
    found = measure.run(bound(cpu_bind="even", world_size=4))
    assert found.series["granted"] == found.series["asked"] and len(found.series["asked"]) == 4


@pytest.mark.slow
def test_a_launcher_that_fails_says_why(worker_groups, monkeypatch):
    need_open_mpi()
    monkeypatch.setattr(launchers, "AFFINITY", (sys.executable, "-c", "import sys; sys.exit('no cores today')"))
    with pytest.raises(RuntimeError, match=r"^open_mpi left with exit code 1: .*no cores today"):
        measure.run(bound(cpu_bind="even"))
