"""Communication between real nodes: its cells, and its table beside that of one machine."""

from __future__ import annotations

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import launchers
from perfscribe.experiments.communication_nodes import measure
from perfscribe.plan import plan

RAW = config.load(ROOT / "config.yaml")


def cells(preset: str) -> list[Cell]:
    return measure.cells(plan.own_section(config.resolve(RAW, preset), "communication_nodes"))


def test_the_model_is_that_of_one_machine() -> None:
    for preset in config.PRESETS:
        sections = config.resolve(RAW, preset)["experiments"]
        same = set(sections["communication_nodes"]) - {"isolation"}
        assert {key: sections["communication"][key] for key in same} == {
            key: sections["communication_nodes"][key] for key in same
        }
        assert [cell.requires[0] for cell in cells(preset)] == ["nodes:2"] * len(cells(preset))
    assert all("cuda:2" in cell.requires for cell in cells("gpu"))


def test_nodes_of_the_job_begin_with_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "require", lambda launcher: None)
    monkeypatch.setattr(launchers.socket, "gethostname", lambda: "n2.cluster")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    assert launchers.nodes_of_job(2) == ["n2", "n1"]
    with pytest.raises(launchers.Unsupported, match=r"^3 nodes$"):
        launchers.nodes_of_job(4)


def test_srun_sees_the_job_and_not_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NNODES", "1")
    assert {name for name in launchers.environment_of_job() if name.startswith("SLURM_")} == {"SLURM_JOB_ID"}
