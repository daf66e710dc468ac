"""Trials of bench/faults.py of two kinds: what a report meets, and the run after it. test_kills.py has kill -9."""

import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "bench" / "faults.py"
KINDS = ("file", "disk full")


def test_trials() -> None:
    """The file is the journal, cut off somewhere; a full disk is `not here` where no namespace may be made."""
    command = [sys.executable, HARNESS, "--light", "--seed", "12", "--trials", str(len(KINDS)), "--kind", *KINDS]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "0.jsonl truncated): survived" in done.stdout, done.stdout
