"""Some trials of bench/faults.py, of several kinds: what a report meets, and the run after it."""

import re
import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "bench" / "faults.py"
KINDS = ("file", "kill all", "disk full", "read-only")


def test_trials() -> None:
    """The file is the journal, cut off somewhere; the mounts are `not here` where no namespace may be made."""
    command = [sys.executable, HARNESS, "--light", "--seed", "12", "--trials", str(len(KINDS)), "--kind", *KINDS]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "0.jsonl truncated): survived" in done.stdout, done.stdout
    assert re.search(r"kill all \(.*: survived", done.stdout), done.stdout
