"""Project trees whose user sits on the login node of a real Slurm."""

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import faulty
import yaml
from local_slurm import LocalSlurm, wait_for
from sessions import Process
from workspace import Workspace

from perfscribe.base import registry

COMMAND = ("snakemake", "--profile", "slurm", "report")
RUN_S = 1500.0


class OnSlurm(Workspace):
    """A project tree whose user sits on the login node."""

    def __init__(self, root: Path, slurm: LocalSlurm, **settings: Any) -> None:
        root.mkdir()
        super().__init__(root)
        self.slurm, self.output = slurm, root / "output.log"
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        """Preset tiny, and the section `cluster`. The nodes are name spaces, which share the machine's few cores."""
        settings["environment"] = {"OMP_NUM_THREADS": 1, **settings.get("environment", {})}
        path = self.root / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config |= {"preset": "tiny", "cluster": {**config["cluster"], **settings}}
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def only_enabled(self, *names: str, **keys: dict[str, Any]) -> None:
        """Disable every other experiment. keys: levels of some."""
        path = self.root / "config.yaml"
        config = yaml.safe_load(path.read_text())
        for name in set(registry.measured()) - set(names):
            config["experiments"].setdefault(name, {})["enabled"] = False
        config["experiments"] |= keys
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def login(self) -> dict[str, str]:
        """Variables of the login shell, with the environment's programs on PATH."""
        mine = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PERFSCRIBE_COMMIT": "0" * 40}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**self.slurm.environment(), **mine, "PATH": path}

    def begin(self, *command: str, **variables: str) -> Process:
        """Start a command, by default the user's."""
        return Process(command or COMMAND, self.root, {**self.login(), **variables}, self.output)

    def finish(self, **variables: str) -> str:
        """Run the user's command to its end; what it said. It must succeed."""
        run = self.begin(**variables)
        code = run.wait(RUN_S)
        assert code == 0, tail(run.log())
        return run.log()

    def add_sleeping(self, cells: int, seconds: float) -> Path:
        """One experiment, `slow`, whose cells last that long; the file in which they note each execution."""
        side_file = self.root / "executions"
        self._add_slow(faulty.sleeping("slow", side_file, (seconds,)), cells)
        return side_file

    def add_staged(self, cells: int) -> Path:
        """One experiment, `slow`, whose cells but the first end when faulty.let_end says so; where they note that."""
        side_file = self.root / "executions"
        self._add_slow(faulty.source("slow", side_file, faulty.WAITING), cells)
        return side_file

    def _add_slow(self, source: str, cells: int) -> None:
        self.only()
        self.add_experiment("slow", source, n=list(range(cells)))

    def job_running(self) -> tuple[str, str]:
        """Number and nodes of the measuring job, as soon as one runs."""

        def running() -> tuple[str, str] | None:
            own, known = jobs_of(self.output.read_text()), self.slurm.jobs()
            return next(((job, known[job][1]) for job in own if known.get(job, ("",))[0] == "RUNNING"), None)

        found: tuple[str, str] = wait_for(running, 240, "a job that runs")
        return found

    def after(self, side_file: Path, cells: int) -> tuple[str, str]:
        """The running job, once so many of its cells have ended and another has begun."""

        def there() -> bool:
            ended, begun = (faulty.notes(side_file, what).total() for what in ("end", "start"))
            return ended >= cells and begun > ended

        wait_for(there, 240, f"{cells} cells to end")
        return self.job_running()


def tail(text: str) -> str:
    """The end of a log, without its longest lines."""
    return "\n".join(line[:300] for line in text.splitlines()[-60:])


def jobs_of(log: str) -> list[str]:
    """Numbers of Slurm's jobs that a run has submitted."""
    return re.findall(r"submitted with SLURM jobid (\d+)", log)


def lost(side_file: Path) -> Counter[str]:
    """Cells that were started more often than they ended."""
    return faulty.notes(side_file) - faulty.notes(side_file, "end")
