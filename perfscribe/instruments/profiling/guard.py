"""Runs nsys and leaves no processes or temporary files behind: guard.py TIMEOUT_S COMMAND [ARGUMENT ...]

nsys starts its agent and the profiled program in separate sessions, which a signal to nsys's process group does not
reach: after a time-out the program would keep using the GPU. This process adopts everything that the command starts,
and kills it when the command has ended, when it took too long, or when the guard's starter has died (standard input
closes). Adopting needs Linux; elsewhere it kills the descendants it can see. The command's folder for temporary files
(TMPDIR) is a new one, which is removed.

Exit status: the command's, 124 after a time-out, 128 + signal if a signal ended the command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

TIMED_OUT = 124
POLL_S = 0.05
# Variables of the profiled program that name files that nsys puts into /tmp and, if killed, leaves there.
FILES_OF_NSYS = ("QUADD_INJECTION_CONFIG", "QUADD_CUDA_CONFIG")
# Processes that nsys starts exit shortly after it; its agent is killed if it does not.
GRACE_S = 2.0


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants."""
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_child_subreaper = 36
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1)


def starter_is_gone() -> bool:
    """Return whether standard input is closed: at its other end, or here by a signal."""
    try:
        readable, _, _ = select.select([0], [], [], 0)
        return bool(readable) and not os.read(0, 1)
    except OSError:
        return True


def close_standard_input(*_: object) -> None:
    """Simulate the starter's death; a signal handler."""
    with contextlib.suppress(OSError):
        os.close(0)


def end_all(grace_s: float) -> None:
    """Wait grace_s for all descendants, then kill the rest, until there are none."""
    kill_from = time.monotonic() + grace_s
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for process in left if time.monotonic() >= kill_from else ():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                process.kill()
                for name in FILES_OF_NSYS:
                    if Path(variables.get(name, "")).name.startswith("injection_config_"):
                        Path(variables[name]).unlink(missing_ok=True)
        time.sleep(POLL_S)


def main(timeout_s: float, command: Sequence[str]) -> int:
    """Run the command in a scratch folder to its end or time-out; returns the exit status."""
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, close_standard_input)
    with tempfile.TemporaryDirectory(prefix="nsys-", ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": scratch})
        deadline = time.monotonic() + timeout_s
        while process.poll() is None:
            late = time.monotonic() >= deadline
            if late or starter_is_gone():
                end_all(0.0)
                return TIMED_OUT if late else 128 + signal.SIGTERM
            time.sleep(POLL_S)
        end_all(GRACE_S)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
