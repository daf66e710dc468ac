"""An interrupt ends a report in one line, also while Python starts."""

import signal
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


# Snakemake's command line, after which a thread keeps Python from ending.
ENDED = """
import signal, threading, time
from snakemake import cli
from perfscribe.run import engine, stopping
def finished():
    stopping.interrupt_at(signal.SIGTERM)
    threading.Thread(target=lambda: (time.sleep(0.3), print("ending", flush=True), time.sleep(10))).start()
cli.main, engine.refuse_unknown = finished, lambda cli: None
engine.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_a_run_has_ended_prints_no_traceback(number: signal.Signals) -> None:
    running = subprocess.Popen([sys.executable, "-c", ENDED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline() == b"ending\n"
    running.send_signal(number)
    assert running.communicate(timeout=5) == (b"", b"") and running.returncode == -number
