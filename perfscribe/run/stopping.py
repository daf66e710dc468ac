"""Runs a command that, on a stop signal, ends together with all processes it started."""

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from perfscribe.base.processes import die_with
from perfscribe.run.processes import say

# After the first signal: stop measuring processes, then Snakemake (which cancels a cluster's jobs), then kill all.
SNAKEMAKE_AFTER_S, ALL_AFTER_S = 3.0, 6.0


class Command:
    """A running command in its own process group, so that a terminal's Ctrl-C reaches only this process."""

    def __init__(self, words: Sequence[str], cwd: Path) -> None:
        begin = functools.partial(_begin, os.getpid())
        self._process = subprocess.Popen(words, cwd=cwd, process_group=0, preexec_fn=begin)
        self._asked: list[int] = []
        self._steps = [self._end_snakemake, self._end_all]
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._go_on)

    def wait(self) -> int:
        """Return its exit status; 128 plus the signal's number if it was stopped."""
        code = self._process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not self._asked:
            return code if code >= 0 else 128 - code
        self._end_all()
        _say("stopped; finished cells are kept")
        return 128 + self._asked[0]

    def _stop(self, number: int, _: object) -> None:
        self._asked.append(number)
        if len(self._asked) > 1:
            self._end_now()
        below = _processes_below(self._process.pid)
        _terminate(below)
        signal.setitimer(signal.ITIMER_REAL, SNAKEMAKE_AFTER_S if below else 0.01)

    def _go_on(self, *_: object) -> None:
        if self._steps:
            self._steps.pop(0)()
            signal.setitimer(signal.ITIMER_REAL, ALL_AFTER_S)

    def _end_snakemake(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def _end_all(self) -> None:
        for process in _processes_below(self._process.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.kill()

    def _end_now(self) -> NoReturn:
        """Kill everything at the second signal."""
        self._end_all()
        _say("stopped at once; finished cells are kept")
        os._exit(128 + self._asked[0])


def _begin(parent: int) -> None:
    """Set up the command in preexec_fn: an interrupt waits until Python has started, or it would print a traceback."""
    die_with(parent)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def interrupt_at(*numbers: signal.Signals) -> None:
    """Let these signals interrupt Snakemake, which is this process, like Ctrl-C; on SIGTERM it would await its jobs.

    Processes it started end, too: measuring on this machine, queries to a cluster.
    """
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    _terminate(_processes_below(os.getpid()))
    raise KeyboardInterrupt


def _processes_below(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _terminate(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        say(text)
