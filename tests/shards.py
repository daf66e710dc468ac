"""One shard's job in a copy of the package, run in the test's process or as the rule `measure` runs it."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sessions
from planned_site import planned

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.plan.fingerprint import Sources
from perfscribe.records import journal
from perfscribe.run import worker

ROOT = Path(__file__).resolve().parents[1]


class ShardJob:
    """Plan, journal and records of a test's experiment `probe`. options: isolation, timeout_s."""

    def __init__(self, root: Path, source: str) -> None:
        self.root, self.site = root, root / "results" / "local"
        leave_out = shutil.ignore_patterns("__pycache__", "experiments")
        shutil.copytree(ROOT / "perfscribe", root / "perfscribe", ignore=leave_out)
        shutil.copytree(ROOT / "workflow" / "scripts", root / "workflow" / "scripts", ignore=leave_out)
        folder = root / "perfscribe" / "experiments" / "cs336" / "probe"
        folder.mkdir(parents=True)
        for package in (folder, folder.parent, folder.parent.parent):
            (package / "__init__.py").write_text("")
        (folder / "measure.py").write_text(source)
        self.plan_file = self.site / "plan" / "measure-probe-0.json"
        self.journal_file = self.site / "journal" / "probe" / "0.jsonl"
        self.records_file = self.site / "records" / "probe" / "0.jsonl"

    def plan(self, cells: Sequence[Cell], isolation: str = "job", timeout_s: float = 60, **fields: Any) -> None:
        """Write the shard's plan; fields replace its defaults."""
        code = Sources(self.root).fingerprint("perfscribe.experiments.cs336.probe.measure")
        planned(self.root, cells, **{"fingerprint": code, "libraries": [], "budget_minutes": None, **fields})
        options = {"probe": {"isolation": isolation, "timeout_s": timeout_s}}
        files.write_json(self.plan_file.with_name("options.json"), options)

    def measure(self) -> list[dict[str, Any]]:
        """Do the job here, without a supervisor; returns the records."""
        worker.measure(self.plan_file, self.root, self.records_file)
        return self.rows()

    def running(self) -> AbstractContextManager[sessions.Process]:
        """The whole job: supervisor, worker and child."""
        script = self.root / "workflow" / "scripts" / "measure.py"
        places = ["--plan", self.plan_file, "--out", self.records_file]
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        return sessions.running([sys.executable, script, *places], self.root, environment, self.root / "job.log")

    def rows(self) -> list[dict[str, Any]]:
        """The records file."""
        return [json.loads(line) for line in self.records_file.read_text().splitlines()]

    def events(self) -> list[dict[str, Any]]:
        """The journal file's, but for a line that is just written."""
        return [journal.parse(line) for line in self.journal_file.read_bytes().split(b"\n")[:-1]]
