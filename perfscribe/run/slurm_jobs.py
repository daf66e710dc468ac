"""Looks after a run's jobs of Slurm where Snakemake's executor does not.

Where a cluster's PreemptMode is CANCEL, a preempted job ends as PREEMPTED, and the executor waits for Slurm to take it
up again, which Slurm does not do unasked. A Ctrl-C while the executor asks for states cancels no job. And Slurm queues
for ever what a partition never serves.
"""

from __future__ import annotations

import threading
from pathlib import Path

from perfscribe.records import environment
from perfscribe.run.processes import say

LOOK_EVERY_S = 20.0
ANSWER_S = 60.0
ALIVE, PENDING, PREEMPTED = "PENDING,RUNNING,SUSPENDED", "PENDING", "PREEMPTED"
# Why a job waits its turn; any other reason is told once.
ORDINARY = ("None", "Priority", "Resources", "Dependency", "BeginTime", "Cleaning")


def jobs_in(states: str, root: Path) -> dict[str, str] | None:
    """This user's jobs that were submitted from here and are in these states, each with why it waits; None if Slurm is
    mute.
    """
    asked = ("squeue", "--noheader", "--me", f"--states={states}", "--format=%i|%r|%Z")
    said = environment.output(*asked, timeout_s=ANSWER_S)
    if said is None:
        return None
    rows = [line.split("|", 2) for line in said.splitlines() if line.count("|") > 1]
    return {number: reason for number, reason, folder in rows if folder == str(root)}


class Keeper:
    """A thread that queues preempted jobs again, and says why others wait, until it is stopped."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.others: dict[str, str] | None = None  # of earlier runs
        self.told: set[str] = set()
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
        left = list(self._own(ALIVE))
        return left if left and environment.output("scancel", *left, timeout_s=ANSWER_S) is not None else []

    def look(self) -> None:
        """Queue again what was preempted; say what waits for more than its turn."""
        for number in self._own(PREEMPTED):
            environment.output("scontrol", "requeue", number, timeout_s=ANSWER_S)
        by_reason: dict[str, list[str]] = {}
        for number, reason in self._own(PENDING).items():
            if reason not in ORDINARY and number not in self.told:
                by_reason.setdefault(reason, []).append(number)
        for reason, numbers in by_reason.items():
            self.told.update(numbers)
            say(f"jobs {', '.join(numbers)} wait: {reason}")

    def _own(self, states: str) -> dict[str, str]:
        found = jobs_in(states, self.root) if self.others is not None else None
        return {number: reason for number, reason in (found or {}).items() if number not in (self.others or {})}

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()
