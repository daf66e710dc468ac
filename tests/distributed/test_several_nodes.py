"""Ranks on several nodes of a Slurm job: what is refused. Real ones: tests/slurm."""

from __future__ import annotations

import pytest
import rank_programs

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import hosts
from perfscribe.distributed.launch import launch
from perfscribe.records import environment


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm job of two nodes."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "127.0.0.1,localhost")
    monkeypatch.setattr(hosts, "_of_slurm_job", lambda number: "")


def test_without_a_job_or_nodes_enough_there_is_a_reason(job: None, monkeypatch: pytest.MonkeyPatch) -> None:
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
