"""An interrupt ends a report in one line, also while Python starts."""

import subprocess
import sys

import pytest
from workspace import ROOT

STOPPED = """
import os, signal, sys, time
from pathlib import Path
from perfscribe.run.stopping import Command
command = Command([sys.executable, "-m", "perfscribe.run.engine", "--version"], Path.cwd())
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), signal.SIGINT)
sys.exit(command.wait())
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.04])
def test_an_interrupt_while_python_starts_prints_no_traceback(delay_s: float) -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED, str(delay_s)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped; finished cells are kept\n")
