"""Ranks on several nodes of a Slurm job, with a stand-in for srun that starts a torchrun for each node here."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import rank_programs
import unmeasured
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Unsupported
from perfscribe.distributed import hosts
from perfscribe.distributed.failures import RankError
from perfscribe.distributed.launch import launch
from perfscribe.experiments.preflight import measure as preflight
from perfscribe.records import environment

# Starts the command once for each node that it is asked for, as srun does with a task a node; keeps its words.
SRUN = """#!{python}
import json, os, subprocess, sys

words = sys.argv[1:]
own = [word for word in words if word.startswith("--")][: words.index({python!r})]
nodes = next(int(word.split("=")[1]) for word in own if word.startswith("--nodes="))
with open({kept!r}, "w") as file:
    json.dump(words, file)
started = [
    subprocess.Popen(words[words.index({python!r}) :], env=os.environ | {{"SLURM_NODEID": str(node)}})
    for node in range(nodes)
]
sys.exit(max(abs(one.wait()) for one in started))
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm job of two nodes, both of which are this machine; the file in which srun keeps its words."""
    folder, kept = tmp_path / "bin", tmp_path / "words"
    folder.mkdir()
    srun = folder / "srun"
    srun.write_text(SRUN.format(python=sys.executable, kept=str(kept)))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")  # ranks are fresh interpreters
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "127.0.0.1,localhost")
    monkeypatch.setattr(hosts, "_of_slurm_job", lambda number: "")
    return kept


def test_ranks_are_numbered_node_by_node(job: Path) -> None:
    launched = launch(rank_programs.works, {}, nodes=2, world_size=4, timeout_s=120)
    places = [said["place"] for said in launched.results]
    assert [place["rank"] for place in places] == [0, 1, 2, 3]
    assert [place["local_rank"] for place in places] == [0, 1, 0, 1]
    assert {said["sum"] for said in launched.results} == {6.0}
    words = json.loads(job.read_text())
    assert {"--nodes=2", "--ntasks-per-node=1", "--nproc-per-node=2"} <= set(words)


def test_a_rank_of_another_node_that_fails_is_named(job: Path) -> None:
    with pytest.raises(RankError, match="rank 1 of 2: ValueError: a bad value"):
        launch(rank_programs.faulty, {"fault": "raises"}, nodes=2, world_size=2, timeout_s=120)


def test_without_a_job_or_nodes_enough_there_is_a_reason(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.shortfall(("transformers", "nodes:2")) is None
    assert environment.shortfall(("nodes:4",)) == ("skipped", "2 nodes")
    with pytest.raises(Unsupported, match=r"^2 nodes$"):
        launch(rank_programs.works, {}, nodes=4, world_size=4, timeout_s=60)
    with pytest.raises(ValueError, match="world_size: 3 ranks do not divide evenly among 2 nodes"):
        launch(rank_programs.works, {}, nodes=2, world_size=3, timeout_s=60)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name)
    assert environment.shortfall(("nodes:2",)) == ("skipped", "1 node")
    with pytest.raises(Unsupported, match="not within a Slurm job"):
        launch(rank_programs.works, {}, nodes=2, world_size=2, timeout_s=60)


def test_the_self_test_goes_over_the_nodes(job: Path) -> None:
    section = config.resolve(unmeasured.raw_config(), "tiny")["experiments"]["preflight"]
    (planned,) = (cell for cell in preflight.cells(section) if cell["nodes"] == 2)
    assert planned.requires == ("nodes:2",)
    found = preflight.run(planned)
    assert found.values["exit_code"] == 0 and found.values["busbw_gb_per_s"] > 0
    assert "--nodes=2" in json.loads(job.read_text())
