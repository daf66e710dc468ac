"""`snakemake --profile slurm report` on a real Slurm of two nodes: whole runs, and ranks on both nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import local_slurm
import pytest
from clusters import cluster
from local_slurm import LocalSlurm, NotHere
from on_slurm import RUN_S, OnSlurm, jobs_of, tail
from workspace import ROOT

from perfscribe.plan import plan

ENDED_WELL = ("ok", "unsupported", "skipped")
# Of every kind of job: with data sets and without, of one process and of ranks, on one node and on two, tested before.
KINDS = ("all_reduce", "attention", "communication_nodes", "io_formats", "multi_gpu", "preflight", "rank_methods")


def test_what_a_machine_without_slurm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_slurm.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("REQUIRE", raising=False)
    monkeypatch.delenv("PERFSCRIBE_SLURM_TESTS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^a cluster in network name spaces needs root$"):
        cluster().__enter__()
    monkeypatch.setenv("REQUIRE", "other,slurm")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE names slurm, but a cluster in network name spaces needs"):
        cluster().__enter__()


def test_packages_are_installed_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []

    def refuse(packages: Sequence[str]) -> None:
        installed.extend(packages)
        raise NotHere("there is no network")

    monkeypatch.setattr(local_slurm.os, "geteuid", lambda: 0)
    monkeypatch.setattr(local_slurm.shutil, "which", lambda name, path="": "/bin/x" if name == "apt-get" else None)
    monkeypatch.setattr(local_slurm, "_install", refuse)
    monkeypatch.delenv("REQUIRE", raising=False)
    monkeypatch.delenv("PERFSCRIBE_SLURM_TESTS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"slurmctld slurmd is not installed; PERFSCRIBE_SLURM_TESTS=1 "):
        cluster().__enter__()
    assert not installed
    monkeypatch.setenv("PERFSCRIBE_SLURM_TESTS", "1")
    with pytest.raises(pytest.skip.Exception, match="there is no network"):
        cluster().__enter__()
    assert {"slurmctld", "slurmd", "munge"} <= set(installed) and "slurmdbd" not in installed
    monkeypatch.setenv("REQUIRE", "slurm")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE names slurm, but there is no network"):
        cluster(accounting=True).__enter__()
    assert {"slurmdbd", "mariadb-server"} <= set(installed)


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    with cluster(cpus=8) as up:
        yield up


# --- the user's command, from nothing to a report ------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> OnSlurm:
    """The project with the tiny preset, measured from a login node where torch cannot be imported."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a login node has no torch')\n")
    space = OnSlurm(folder / "whole", slurm, environment={"PYTHONPATH": ""}, setup=["export SEEN_IN_JOBS=yes"])
    space.only_enabled(*KINDS)
    space.finish(PYTHONPATH=str(folder))
    return space


def measured(space: OnSlurm) -> list[dict]:
    """The records of all experiments, of cells that were started."""
    rows = [row for name in KINDS for row in space.rows(name)]
    return [row for row in rows if row["provenance"] and not row["values"].get("before_start")]


def test_the_command_word_for_word(whole: OnSlurm) -> None:
    assert whole.report().startswith("# ")
    log = whole.output.read_text()
    assert log.count("report: report/local/report.md") == 1 and "a login node has no torch" not in log
    rows = [row for name in KINDS for row in whole.rows(name)]
    bad = [row for row in rows if row["status"] not in ENDED_WELL]
    assert not bad, [(row["experiment"], row["factors"], row["status"], row["reason"]) for row in bad]
    assert sum(row["status"] == "ok" for row in rows) > 40


def test_both_nodes_measured_and_records_say_so(whole: OnSlurm) -> None:
    rows = measured(whole)
    assert {row["provenance"]["node"] for row in rows} == {"node1", "node2"}
    submitted = jobs_of(whole.output.read_text())
    assert {row["provenance"]["slurm_job_id"] for row in rows} <= set(submitted)
    (said,) = {json.dumps(row["provenance"]["cluster"], sort_keys=True) for row in rows}
    settings = json.loads(said)
    assert (settings["executor"], settings["max_nodes"], settings["exclusive"]) == ("slurm", 2, True)
    assert settings["setup"] == ["export SEEN_IN_JOBS=yes"]


def test_jobs_are_few_and_not_for_what_is_only_shown(whole: OnSlurm) -> None:
    log = whole.output.read_text()
    made = plan.read_index(whole.root / "results" / "local" / "plan")
    assert len(jobs_of(log)) == sum(made.shards.values()) + len(made.datasets)
    assert set(state for state, _ in whole.slurm.jobs().values()) == {"COMPLETED"}


def test_a_second_run_starts_nothing(whole: OnSlurm) -> None:
    before, report = whole.slurm.jobs(), whole.report()
    log = whole.finish()
    assert "Nothing to be done" in log and not jobs_of(log)
    assert whole.slurm.jobs() == before and whole.report() == report


# --- ranks on two nodes -------------------------------------------------------------------------------------------


def test_the_row_of_real_nodes(whole: OnSlurm) -> None:
    rows = [row for row in whole.rows("communication_nodes") if row["factors"]["backend"] == "gloo"]
    (row,) = [row for row in rows if row["status"] != "skipped"]
    assert row["status"] == "ok" and "inter_transfer_ms" in row["samples"], row["reason"]
    assert "tables/polaris.communication_nodes.csv" in whole.report()


@pytest.mark.parametrize("experiment", ["multi_gpu", "preflight"])
def test_the_rows_of_trainings_over_real_nodes(whole: OnSlurm, experiment: str) -> None:
    """Two nodes train together and are tested before; four are more than the cluster has."""
    gloo = [row for row in whole.rows(experiment) if row["factors"]["backend"] == "gloo"]
    rows = [row for row in gloo if row["factors"]["nodes"] > 1 and row["reason"] != "preset tiny"]
    ends = {row["factors"]["nodes"]: (row["status"], row["reason"]) for row in rows}
    assert ends.pop(2) == ("ok", "") and set(ends.values()) <= {("skipped", "2 nodes")}
    (row,) = [row for row in rows if row["status"] == "ok"]
    if experiment == "preflight":
        assert row["values"]["nodes"].split(", ") == ["node1", "node2"] or row["values"]["nodes"] == "node2, node1"
    else:
        assert row["values"]["hosts"] == 2 and row["values"]["wrapped_by"] == "FSDP2"


PROGRAM = """import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from perfscribe.distributed.launch import WorkerGroup


def step(arguments, rank):
    torch.manual_seed(0)
    number, count = rank.place.rank, rank.place.world_size
    model = torch.nn.Linear(4, 2, bias=False)
    if arguments["kind"] == "all_reduce":
        tensor = torch.full((1024,), float(number + 1))
        dist.all_reduce(tensor)
        found = sorted(set(tensor.tolist()))
    else:
        if arguments["kind"] == "ddp":
            wrapped = DistributedDataParallel(model)
        else:
            wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
        wrapped(torch.full((1, 4), float(number + 1))).sum().backward()
        gradient = model.weight.grad
        found = sorted(set((gradient.full_tensor() if arguments["kind"] == "fsdp" else gradient).flatten().tolist()))
    return {"node": rank.place.host, "rank": number, "local_rank": rank.place.local_rank, "found": found}


if __name__ == "__main__":
    import two_nodes

    for ranks_per_node in (1, 2):
        with WorkerGroup(two_nodes.step, nodes=2, world_size=2 * ranks_per_node, timeout_s=120) as workers:
            for kind in ("all_reduce", "ddp", "fsdp"):
                print("RESULT", json.dumps([ranks_per_node, kind, workers.ask({"kind": kind})]), flush=True)
"""


def test_all_reduce_ddp_and_fsdp_over_two_nodes(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Ranks of both nodes exchange over the network between them, each node by name; by one rank a node and by two."""
    (tmp_path / "two_nodes.py").write_text(PROGRAM)
    batch = ["-N2", "--ntasks=2", f"--output={tmp_path}/said", f"--chdir={tmp_path}", "--wrap"]
    variables = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    slurm.batch(*batch, f"{sys.executable} two_nodes.py", timeout_s=RUN_S, **variables)
    said = (tmp_path / "said").read_text()
    results = [json.loads(line.removeprefix("RESULT ")) for line in said.splitlines() if line.startswith("RESULT ")]
    assert len(results) == 6, tail(said)
    for ranks_per_node, kind, ranks in results:
        count = 2 * ranks_per_node
        total = count * (count + 1) / 2
        assert [rank["rank"] for rank in ranks] == list(range(count))
        assert [rank["local_rank"] for rank in ranks] == [*range(ranks_per_node)] * 2
        assert {rank["node"] for rank in ranks} == {"node1", "node2"}
        expected = total if kind == "all_reduce" else total / count
        assert all(rank["found"] == [expected] for rank in ranks), (kind, ranks)


TRAINING = """import json
import random
import sys
from pathlib import Path

sys.path[:0] = {paths!r}
from test_sharded_training import BLOOM, CONFIG

from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.data.generate import generate
from perfscribe.training import launching

if __name__ == "__main__":
    [(name, dataset)] = squad_sets.datasets(CONFIG).items()
    folder = Path({folder!r})
    generate(json.loads(json.dumps({{"dataset": name, "formats": [], **dataset}})), folder / name)
    same = BLOOM | {{"loop": "bare loop", "wrap": "FSDP2", "backend": "gloo"}}
    for nodes, ranks, grad_acc in ((2, 2, 2), (1, 2, 2), (2, 4, 1)):
        random.seed(5)
        levels = same | {{"nodes": nodes, "world_size": ranks, "grad_acc": grad_acc}}
        found = launching.run(Cell(levels, data=(name,), data_folder=str(folder)))
        print("RESULT", json.dumps([nodes, ranks, found.values["hosts"], found.series["train_loss"]]), flush=True)
"""


def test_a_training_over_two_nodes_has_the_losses_of_one(slurm: LocalSlurm, tmp_path: Path) -> None:
    """One rank on each node, and two on each: the ranks are on both, and train what two ranks of one node train."""
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    (tmp_path / "train.py").write_text(
        TRAINING.format(paths=[str(ROOT / place) for place in (".", "tests", "tests/training")], folder=str(tmp_path))
    )
    batch = ["-N2", "--ntasks=2", f"--output={tmp_path}/said", f"--chdir={ROOT}", "--wrap"]
    slurm.batch(*batch, f"{sys.executable} {tmp_path}/train.py", timeout_s=RUN_S, OMP_NUM_THREADS="1")
    said = (tmp_path / "said").read_text()
    results = [json.loads(line.removeprefix("RESULT ")) for line in said.splitlines() if line.startswith("RESULT ")]
    assert [result[:3] for result in results] == [[2, 2, 2], [1, 2, 1], [2, 4, 2]], tail(said)
    losses = [result[3] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == losses[2] and len(losses[0]) == 4
