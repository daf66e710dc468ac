"""Looks after a run's jobs of Slurm where Snakemake's executor does not.

Where a cluster's PreemptMode is CANCEL, a preempted job ends as PREEMPTED, and the executor waits for Slurm to take it
up again, which Slurm does not do unasked. And a Ctrl-C while the executor asks for states cancels no job.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

LOOK_EVERY_S = 20.0
ANSWER_S = 60.0
ALIVE, PREEMPTED = "PENDING,RUNNING,SUSPENDED", "PREEMPTED"


def jobs_in(states: str, root: Path) -> list[str] | None:
    """Numbers of this user's jobs that were submitted from here and are in these states; None if Slurm is mute."""
    said = _ask("squeue", "--noheader", "--me", f"--states={states}", "--format=%i|%Z")
    if said is None:
        return None
    rows = [line.split("|", 1) for line in said.splitlines() if "|" in line]
    return [number for number, folder in rows if folder == str(root)]


def _ask(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class Keeper:
    """A thread that queues preempted jobs again until it is stopped."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.others: list[str] | None = None  # of earlier runs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to look, before this run submits a job."""
        self.others = jobs_in(f"{ALIVE},{PREEMPTED}", self.root)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(ANSWER_S)

    def cancel(self) -> list[str]:
        """Cancel this run's jobs, and give the numbers of those that Slurm has taken the order for."""
        left = self._own(ALIVE)
        return left if left and _ask("scancel", *left) is not None else []

    def _own(self, states: str) -> list[str]:
        found = jobs_in(states, self.root) if self.others is not None else None
        return [number for number in found or [] if number not in (self.others or [])]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            for number in self._own(PREEMPTED):
                _ask("scontrol", "requeue", number)
