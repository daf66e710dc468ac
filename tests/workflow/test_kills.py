"""kill -9 at any moment costs at most the cell in flight, and needs no unlocking.

A run of a small report is killed at moments drawn over its duration; the run after it must finish the report without
measuring any cell again whose record stood in the journal. Two copies of the project are killed side by side.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import faulty
import psutil
import pytest
import sessions
from sessions import wait_for
from workspace import Workspace

from perfscribe.records import journal

KILLS = 3
COPIES = 2
EXPERIMENTS = {"quick": (0.1, 0.15, 0.1, 0.2), "slow": (0.3, 0.1, 0.2, 0.25)}
CELLS = {f"{experiment} {n}" for experiment, seconds in EXPERIMENTS.items() for n in range(len(seconds))}


class Kills(Workspace):
    """A small report of light cells that note each of their executions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.only()
        self.side = root / "side"
        for experiment, seconds in EXPERIMENTS.items():
            source = faulty.sleeping(experiment, self.side, seconds)
            self.add_experiment(experiment, source, n=list(range(len(seconds))))

    def begin(self, literal: bool) -> AbstractContextManager[sessions.Process]:
        """A report through `run`, or by the bare command that a user of Snakemake types."""
        bare = [sys.executable, "-m", "snakemake", "--cores", "all", "report"]
        command = bare if literal else self.command("report")
        return sessions.running(command, self.root, self.environment(), self.root / "out.log")

    def finish(self, literal: bool = False) -> str:
        """A report to its end; what it printed."""
        with self.begin(literal) as run:
            assert run.wait(120) == 0, run.log()
            return run.log()

    def finished(self) -> dict[str, str]:
        """Id of the record in the journal by cell; it must be read as the next run reads it."""
        found = {}
        for experiment in EXPERIMENTS:
            folder = self.root / "results" / "local" / "journal" / experiment
            for record in journal.read(folder).all_records():
                found[f"{experiment} {record['factors']['n']}"] = record["id"]
        return found

    def forget(self) -> None:
        """As before the first run, but for what Snakemake keeps for itself."""
        for folder in ("results", "report/local", "logs"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        self.side.unlink(missing_ok=True)


def kill_once(project: Kills, moment_s: float, literal: bool) -> bool:
    """Kill a run after moment_s seconds and let the next one finish; whether it was still running."""
    project.forget()
    with project.begin(literal) as run:
        time.sleep(moment_s)
        was_running = run.alive()
        run.kill_tree()
    kept, before = project.finished(), faulty.notes(project.side)
    log = project.finish(literal)
    after = faulty.notes(project.side)
    place = f"killed after {moment_s:.2f} s with {len(kept)} of {len(CELLS)} cells in the journal:\n{log}"
    assert {cell for cell in kept if after[cell] != before[cell]} == set(), f"measured again, {place}"
    assert sum(after.values()) <= len(CELLS) + 1, f"more than the cell in flight was lost, {place}"
    rows = {f"{name} {row['factors']['n']}": row for name in EXPERIMENTS for row in project.rows(name)}
    assert {cell: row["status"] for cell, row in rows.items()} == dict.fromkeys(CELLS, "ok")
    assert {cell: rows[cell]["id"] for cell in kept} == kept, "they stand as they were"
    report = project.report()
    assert re.findall(r"(?m)^\| `\w+` +\| +4 \| +4 \|", report) and "Every cell is ok." in report
    locks = (project.root / ".snakemake" / "locks").glob("*")
    assert not [path for path in locks if path.is_file()], "a user would have to remove them"
    return was_running


@pytest.mark.slow
def test_kill_9_of_the_whole_tree_at_random_moments(tmp_path: Path) -> None:
    projects = [Kills(tmp_path / str(copy)) for copy in range(COPIES)]
    began = time.monotonic()
    with ThreadPoolExecutor(COPIES) as side_by_side:
        list(side_by_side.map(Kills.finish, projects))
    duration_s = time.monotonic() - began
    draw = random.Random(20)
    # One moment in each part of a run, so that none of its phases is left out.
    moments = [(number + draw.random()) / KILLS * duration_s for number in range(KILLS)]

    def kill_in_turn(copy: int) -> list[bool]:
        # Every third run is the bare command, which takes no flag and knows of no lock of ours.
        mine = list(enumerate(moments))[copy::COPIES]
        return [kill_once(projects[copy], moment, literal=number % 3 == 2) for number, moment in mine]

    with ThreadPoolExecutor(COPIES) as side_by_side:
        hit = [was for turn in side_by_side.map(kill_in_turn, range(COPIES)) for was in turn]
    assert len(hit) == KILLS
    assert sum(hit) >= KILLS // 2, "too few runs were still alive when they were to be killed"


@pytest.mark.parametrize("victim", ["run", "engine"])
def test_nothing_goes_on_measuring_when_its_run_is_killed(tmp_path: Path, victim: str) -> None:
    """kill -9 of `./run` alone, and of the Snakemake below it."""
    project = Workspace(tmp_path / "root")
    project.only()
    side = tmp_path / "side"
    project.add_experiment("probe", faulty.source("probe", side, faulty.WAITING), n=[0, 1, 2])
    begin = (project.command("report"), project.root, project.environment(), tmp_path / "out.log")
    with sessions.running(*begin) as run:
        wait_for(lambda: faulty.notes(side)["probe 1"], 60)
        killed = psutil.Process(run.pid) if victim == "run" else run.member("perfscribe.run.engine", "report")
        assert killed
        killed.kill()
        wait_for(lambda: not run.members(), 10)
    faulty.open_gate(side)
    done = project.run("report")
    assert done.returncode == 0, done.stdout
    assert [row["status"] for row in project.rows("probe")] == ["ok"] * 3
    assert faulty.notes(side) == Counter({"probe 0": 1, "probe 1": 2, "probe 2": 1})
