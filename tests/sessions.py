"""Processes of tests, each in a session of its own, so that whatever they start can be found, and killed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil


class Process:
    """A running command; what it prints goes to a file."""

    def __init__(self, command: Sequence[str | Path], cwd: Path, env: Mapping[str, str], output: Path) -> None:
        self.output = output
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup has it ignored, by all below
            )
        self.pid = self._process.pid

    def log(self) -> str:
        return text_of(self.output)

    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self._process.poll() is None

    def wait(self, timeout_s: float = 60) -> int:
        """Its exit status once it and all that it started have ended; where they do not in time, they are killed."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()  # or it goes on beside the tests that follow
            raise
        wait_for(lambda: not self.members(), timeout_s)
        return code

    def members(self) -> list[psutil.Process]:
        """All living processes of the session, those whose parents have died included."""
        return [process for process in psutil.process_iter() if self._owns(process)]

    def _owns(self, process: psutil.Process) -> bool:
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            return os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        return False

    def member(self, *words: str) -> psutil.Process | None:
        """The first process of the session whose command line holds all these words."""
        for process in self.members():
            with suppress(psutil.Error):
                if set(words) <= set(process.cmdline()):
                    return process
        return None

    def kill_tree(self) -> None:
        """kill -9 for the command and all its descendants, then for what they started in the meantime."""
        with suppress(psutil.Error):
            root = psutil.Process(self.pid)
            for process in [*root.children(recursive=True), root]:
                _kill(process)
        self.kill_all()

    def kill_all(self) -> None:
        """kill -9 until the session is empty."""
        while members := self.members():
            for process in members:
                _kill(process)
            time.sleep(0.002)
        self._process.wait(30)

    def signal_group(self, number: signal.Signals) -> None:
        """As a terminal or a batch system sends it: to the whole process group."""
        os.killpg(self.pid, number)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()


@contextmanager
def running(*arguments: Any) -> Iterator[Process]:
    """Process(*arguments), of which nothing is left in the end."""
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.kill_all()


def text_of(path: Path) -> str:
    """A file's text, as far as it is there."""
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""


def wait_for(happens: Callable[[], Any], timeout_s: float = 30, what: str = "this", every_s: float = 0.02) -> Any:
    """Return the value of `happens` as soon as it is true; AssertionError if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = happens()
        if found:
            return found
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {timeout_s:g} s")
