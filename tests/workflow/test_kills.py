"""kill -9 leaves nothing measuring and needs no unlocking; at any moment, it is a kind of trial of bench/faults.py."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import faulty
import psutil
import sessions
from sessions import wait_for
from workspace import Workspace

BARE = [sys.executable, "-m", "snakemake", "--cores", "all", "report"]


def test_nothing_goes_on_measuring_when_its_run_is_killed(tmp_path: Path) -> None:
    """kill -9 of `./run` alone, of the Snakemake below it, and of the bare command that a user of Snakemake types."""
    project = Workspace(tmp_path / "root")
    project.only()
    side = tmp_path / "side"
    project.add_experiment("probe", faulty.source("probe", side, faulty.WAITING), n=[0, 1, 2])
    for times, victim in enumerate(("run", "engine", "snakemake"), start=1):
        command = BARE if victim == "snakemake" else project.command("report")
        with sessions.running(command, project.root, project.environment(), tmp_path / "out.log") as run:
            wait_for(lambda times=times: faulty.notes(side)["probe 1"] == times, 60)
            killed = run.member("perfscribe.run.engine", "report") if victim == "engine" else psutil.Process(run.pid)
            assert killed
            killed.kill()
            wait_for(lambda run=run: not run.members(), 10)
    faulty.let_end(side, 3)
    done = subprocess.run(BARE, cwd=project.root, env=project.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in project.rows("probe")] == ["ok"] * 3
    assert faulty.notes(side) == Counter({"probe 0": 1, "probe 1": 4, "probe 2": 1})
