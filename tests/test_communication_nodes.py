"""Communication between real nodes: its cells, and its table beside that of one machine."""

from __future__ import annotations

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import launchers
from perfscribe.experiments.communication import rows
from perfscribe.experiments.communication_nodes import measure, show
from perfscribe.plan import plan
from perfscribe.records.records import Record

RAW = config.load(ROOT / "config.yaml")


def cells(preset: str) -> list[Cell]:
    return measure.cells(plan.own_section(config.resolve(RAW, preset), "communication_nodes"))


def test_the_model_is_that_of_one_machine() -> None:
    for preset in plan.PRESETS:
        sections = config.resolve(RAW, preset)["experiments"]
        same = set(sections["communication_nodes"]) - {"tool", "isolation"}
        assert {key: sections["communication"][key] for key in same} == {
            key: sections["communication_nodes"][key] for key in same
        }
        assert [cell.requires[0] for cell in cells(preset)] == ["nodes:2"] * len(cells(preset))
    assert all("cuda:2" in cell.requires for cell in cells("gpu"))


def record(experiment: str, status: str, inter: float = 2.0) -> Record:
    """A cell whose collectives take 1 ms within a node and `inter` ms across."""
    factors = dict(cells("tiny")[0].factors)
    names = ["transfer_ms", "rank0_total_ms", "rank0_wait_ms", "rank0_compute_ms"]
    ok = status == "ok"
    times = {"intra": 1.0, "inter": inter}
    return Record(
        experiment=experiment,
        status=status,
        reason="" if ok else "1 node",
        origin="measured",
        factors=factors,
        samples={f"{of}_{name}": [[ms] * 6] for of, ms in times.items() for name in names} if ok else {},
        series={f"{of}_calls": [4] * 6 for of in times} if ok else {},
    )


def shown(of_nodes: str) -> show.Table:
    own, one = record("communication_nodes", of_nodes, inter=5.0), record("communication", "ok")
    (table,) = show.tables({"communication_nodes": [own], "communication": [one]})
    return table


def test_real_nodes_stand_beside_the_loopback_interface() -> None:
    table = shown("ok")
    assert len(table.ok) == 2 * len(rows.METRICS)
    by = {(row["between"], row["metric"]): row for _, row in table.ok.iterrows()}
    transfer = rows.METRICS[rows.TRANSFER]
    assert by[show.NETWORK, transfer]["inter"] == 5.0 and by[show.LOOPBACK, transfer]["inter"] == 2.0
    assert by[show.NETWORK, transfer]["impact"] == 5.0


def test_where_there_are_no_two_nodes_the_rows_say_so() -> None:
    table = shown("skipped")
    assert len(table.ok) == len(rows.METRICS) and len(table.frame) == 2 * len(rows.METRICS)


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
