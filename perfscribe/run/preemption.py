"""Queues jobs of Slurm again that were preempted for good.

Where a cluster's PreemptMode is CANCEL, such a job ends as PREEMPTED, and Snakemake's executor waits for Slurm to take
it up again, which Slurm does not do unasked.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

LOOK_EVERY_S = 20.0
ANSWER_S = 60.0


def preempted_jobs(root: Path) -> list[str]:
    """Numbers of this user's jobs that were submitted from here and have ended as PREEMPTED; none if Slurm is mute."""
    said = _ask("squeue", "--noheader", "--me", "--states=PREEMPTED", "--format=%i|%Z")
    rows = [line.split("|", 1) for line in said.splitlines() if "|" in line]
    return [number for number, folder in rows if folder == str(root)]


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""  # asked again soon


class Requeuer:
    """A thread that looks for such jobs until it is stopped."""

    def __init__(self, root: Path, every_s: float = LOOK_EVERY_S) -> None:
        self.root, self.every_s = root.resolve(), every_s
        self.others: set[str] = set()  # of earlier runs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        self.others = set(preempted_jobs(self.root))
        while not self._stop.wait(self.every_s):
            for number in preempted_jobs(self.root):
                if number not in self.others:
                    _ask("scontrol", "requeue", number)
