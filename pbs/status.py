#!/usr/bin/env python3
"""Print what has become of a PBS job: running, success or failed.

status.py NUMBER

A server that does not answer says nothing of its jobs: they count as running. A finished job that PBS has forgotten
counts as failed; it is submitted again, and what it had measured is replayed.
"""

from __future__ import annotations

import re
import subprocess
import sys

QSTAT_S = 60.0
FORGOTTEN = re.compile(r"unknown job|has finished", re.IGNORECASE)


def verdict(code: int, said: str) -> str:
    """From what `qstat -x -f NUMBER` said and its exit status."""
    state = re.search(r"^\s*job_state = (\w)", said, re.MULTILINE)
    if state is None:
        return "failed" if code and FORGOTTEN.search(said) else "running"
    if state[1] not in "FX":
        return "running"
    left = re.search(r"^\s*Exit_status = (-?\d+)", said, re.MULTILINE)
    return "success" if left is not None and left[1] == "0" else "failed"


def main() -> int:
    """Ask qstat."""
    try:
        done = subprocess.run(
            ["qstat", "-x", "-f", sys.argv[1]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=QSTAT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        print("running")
        return 0
    print(verdict(done.returncode, done.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
