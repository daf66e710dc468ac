"""Cells that wait for a self-test: it is made before them, on this node, and holds back what it must."""

import os
import time
from pathlib import Path

import pytest
from workspace import ROOT, Workspace

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.plan import capabilities, demands, plan
from perfscribe.plan.plan_cells import cell_to_json
from perfscribe.records import machine
from perfscribe.run import gate
from perfscribe.run.shard import Shard

MEASURE = '''"""Cells that stand for trainings on one to three processes."""
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed.needs import self_tested


def cells(config):
    return [Cell({"backend": "gloo", "world_size": n}, self_tested("gloo", n), cost=n) for n in config["worlds"]]


def run(cell):
    return Measurement(samples={"time_ms": [1.0, 2.0, 3.0]})
'''
CONFIG = """\
preset: tiny
chapters: [cs336, fsdp]
experiments:
  preflight:
    world_size: [2]
    nodes: []
    size_mib: {{gloo: 0.25}}
    iterations: 3
    threshold_gb_per_s: {{gloo: {threshold}}}
"""


def ends(space: Workspace, experiment: str) -> dict[int, str]:
    rows = [row for row in space.rows(experiment) if row["factors"]["backend"] == "gloo"]
    rows = [row for row in rows if not row["reason"].startswith("preset")]
    return {row["factors"]["world_size"]: f"{row['status']} {row['reason']}".strip() for row in rows}


def test_below_the_threshold_trainings_are_skipped_and_the_verdict_fails(tmp_path):
    space = Workspace(tmp_path)
    space.only("preflight")
    space.shorten("cs336/2025", "pytorch_attention")
    space.shorten("fsdp/kaust", "baseline")
    space.add_experiment("trained", MEASURE, worlds=[1, 2, 3])
    space.set_config(CONFIG.format(threshold=50_000))
    done = space.run("report")
    assert done.returncode != 0
    found = ends(space, "trained")
    assert found[1] == "ok"
    for world in (2, 3):
        assert found[world].startswith(f"skipped preflight 46: all-reduce of 0.25 MiB among {world} ranks on ")
        assert "below 50000 GB/s" in found[world]
    assert "slowest pair" in found[3]
    assert "preflight 46: " in done.stdout and "(the run did not finish" in done.stdout
    assert "when the links work: ./run remeasure trained status=skipped, then ./run report" in done.stdout
    assert "preflight 46: " in space.report()
    assert "to measure: nothing" in space.succeed("plan")  # no more than the next report would start


class Bench:
    """A gate over a plan of its own, which counts the tests that it makes."""

    def __init__(self, root: Path) -> None:
        self.root, self.site = root, root / "results" / "local"
        self.tried: list[tuple[int, int]] = []
        self.code = 0
        same = {"backend": "gloo", "nodes": 1, "device": "cpu"}
        cells = [{"position": 0, **cell_to_json(Cell({**same, "world_size": 2}))}]
        unit = {"experiment": "preflight", "fingerprint": "f" * 16, "seed": 0, "rounds": 1, "datasets": [], "shard": 0}
        unit |= {"cells": cells, "budget_minutes": None, "on_identity_change": "keep", "libraries": []}
        self.plan_file = self.site / "plan" / "measure-preflight-0.json"
        files.write_json(self.plan_file, unit)

    def measure(self, shard: Shard, cell: dict) -> dict:
        self.tried.append((cell["factors"]["world_size"], cell["factors"]["nodes"]))
        values = {"exit_code": self.code, "line": f"preflight {self.code}: a line"}
        return {"status": "ok", "reason": "", "measurement": {"values": values}}

    def ask(self, *requires: str) -> capabilities.Shortfall | None:
        """Reason why a new job holds such a cell back; "" if it runs."""
        return gate.Gate(self.root, self.site, self.measure).shortfall(requires)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_one_that_passed_lately_on_this_machine_is_taken(bench, monkeypatch):
    folder, other = bench.root / ".perfscribe" / "self_tests", {**machine.identity(()), "cpu_cores": 999}

    def again(seconds_ago: float = 1) -> bool:
        """Whether a job tests anew, so long after those before."""
        for passed in folder.iterdir():
            os.utime(passed, (time.time() - seconds_ago,) * 2)
        before = len(bench.tried)
        assert bench.ask("preflight:gloo:2") is None
        return len(bench.tried) > before

    assert bench.ask("preflight:gloo:2") is None and bench.tried == [(2, 1)]
    assert not again(gate.VALID_S / 2) and again(gate.VALID_S * 2)
    monkeypatch.setattr(gate.platform, "node", lambda: "elsewhere")
    assert again()
    monkeypatch.setattr(gate.machine, "identity", lambda imported: other)
    assert again()


def test_one_that_failed_speaks_for_its_own_job_alone(bench):
    bench.code = 46
    job = gate.Gate(bench.root, bench.site, bench.measure)
    for _ in range(2):
        assert job.shortfall(["preflight:gloo:2"]) == ("skipped", "preflight 46: a line", "held_back")
    assert bench.tried == [(2, 1)]
    bench.code = 0
    assert bench.ask("preflight:gloo:2") is None and len(bench.tried) == 2


def test_over_several_nodes_a_test_speaks_for_its_own_job_alone(bench, monkeypatch):
    """Another job's first node may be the same one, and its other nodes be others."""
    monkeypatch.setattr(capabilities, "nodes_granted", lambda: 2)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for _ in range(2):
        assert bench.ask("nodes:2", "preflight:gloo:4:2") is None and bench.tried == [(4, 2)]
    assert bench.ask("preflight:gloo:4") is None and bench.tried[1:] == [(4, 1)]  # another test
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    assert bench.ask("preflight:gloo:4") is None and len(bench.tried) == 2
    assert bench.ask("preflight:gloo:4:2") is None and bench.tried[2:] == [(4, 2)]
    monkeypatch.setattr(gate.hosts, "of_job", lambda environment: ["a", "b"])  # a job that was requeued elsewhere
    assert bench.ask("preflight:gloo:4:2") is None and len(bench.tried) == 4


def test_a_backend_without_a_test_holds_back_unless_no_test_is_planned(bench):
    held = bench.ask("preflight:nccl:2")
    assert held is not None and (held.status, held.kind) == ("skipped", "held_back")
    assert held.reason.startswith("preflight 44: no self-test of nccl is planned")
    bench.plan_file.unlink()  # as where preflight is not enabled
    assert bench.ask("preflight:nccl:2") is None and bench.tried == []


def test_the_plan_lets_the_chapters_trainings_wait():
    """Every cell of several processes of the chapter, the tests themselves left out, and none of the other chapters."""
    made = plan.build({}, "tiny", ROOT)
    seen = set()
    for name, unit in made.units.items():
        if not name.startswith("measure-"):
            continue
        experiment = unit["experiment"]
        chapters = {table.split(".")[0] for table in made.presentations[experiment].tables}
        waits = chapters == {"fsdp"} and experiment != demands.SELF_TEST
        for cell in unit["cells"]:
            backend, world_size = cell["factors"].get("backend"), cell["factors"].get("world_size", 1)
            nodes = cell["factors"].get("nodes", 1)
            wanted = [(backend, world_size, nodes)] if waits and backend and world_size > 1 else []
            assert list(demands.demands(cell["requires"])) == wanted, cell
            seen.add((waits, world_size > 1, waits and world_size > nodes > 1))
    assert {(False, True, False), (True, True, True)} <= seen
