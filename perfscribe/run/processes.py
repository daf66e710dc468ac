"""Processes that measure: a supervisor restarts the worker, whose child runs the cells; how each of them ends."""

import contextlib
import functools
import json
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from perfscribe.base import error_kinds
from perfscribe.base.processes import die_with, exit_text
from perfscribe.run.leases import Lease

IMPORT_TIMEOUT_S = 300.0
# A process that the kernel cannot kill (hanging driver or file server) is abandoned after this time.
DEATH_TIMEOUT_S = 30.0
# Longest TMPDIR in bytes: a path of multiprocessing's sockets, 103 bytes at most, goes on with
# "/perfscribe-xxxxxxxx/listener-xxxxxxxx". With a longer one data loaders wait for their workers for ever.
LONGEST_FOLDER = 65
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Set by an enclosing launch: Trainer would wait for its other ranks. Launches within cells set their own.
OF_RANKS = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PMI_RANK|PMI_SIZE)$|(OMPI|MV2)_COMM_WORLD_"
)
# Erases the terminal line at the cursor.
CLEAR = "\r\x1b[K"
# Process id of the run that started a job on this machine; measuring ends with that process.
RUN = "PERFSCRIBE_RUN"


def redraws(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal that can redraw a line."""
    return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def say(text: str) -> None:
    """Print one line for the job's log or the terminal, replacing the live line if there is one."""
    print(f"{CLEAR if redraws(sys.stderr) else ''}{text}", file=sys.stderr, flush=True)


def python_path(root: Path) -> str:
    """PYTHONPATH of a process that imports this checkout's package, whichever the environment has."""
    return os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)


def begin_child(parent: int, cores: Collection[int] = ()) -> None:
    """Set up a child in preexec_fn: it dies with its parent and runs on these cores; empty: its parent's."""
    die_with(parent)
    if cores:
        os.sched_setaffinity(0, cores)


def ended(kind: str, reason: str) -> dict[str, Any]:
    """Answer for a cell whose child gave none."""
    status = "timeout" if kind == error_kinds.TIMEOUT else "failed"
    return {"status": status, "reason": reason, "error": {"kind": kind, "message": reason}}


class Child:
    """A running child process; run() returns its answer, or how it died.

    It leads a process group, so that Ctrl-C reaches only the worker, and stop() ends whatever a cell started.
    lease: GPUs and cores that it may use; it holds the locks together with the worker.
    """

    def __init__(
        self,
        experiment: str,
        root: Path,
        memory_limit_bytes: int,
        libraries: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> None:
        base = tempfile.gettempdir()
        self._socket_folder = tempfile.mkdtemp(
            prefix="perfscribe-", dir=base if len(os.fsencode(base)) <= LONGEST_FOLDER else "/tmp"
        )
        words = [experiment, str(memory_limit_bytes), self._socket_folder, *libraries]
        env = {name: text for name, text in os.environ.items() if not OF_RANKS.match(name)}
        env |= {"PYTHONPATH": python_path(root)}
        env |= lease.variables() if lease else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perfscribe.run.child", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=root,
            process_group=0,
            pass_fds=lease.descriptors if lease else (),
            preexec_fn=functools.partial(begin_child, os.getpid(), lease.cores if lease else ()),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._buffer = b""
        ready = self._answer(IMPORT_TIMEOUT_S)
        self.import_failure = None if ready.get("ready") else ready

    def run(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the child's answer for one cell; if it dies or is late, which kills it, ended()'s answer."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            return self._death()
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.stop()
                    return ended(error_kinds.TIMEOUT, f"longer than {timeout_s:g} s")
                piece = os.read(self._answers.fileno(), 1 << 16)
                if not piece:
                    return self._death()
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self.stop()
            return ended(error_kinds.DIED, "wrote into the descriptor that answers go to")
        return answer

    def _death(self) -> dict[str, Any]:
        try:
            code = self._process.wait(DEATH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            return ended(error_kinds.DIED, "closed its pipe and went on")
        return ended(error_kinds.DIED, exit_text(code))

    @property
    def alive(self) -> bool:
        """Return whether it can run another cell."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Kill it and the processes of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_TIMEOUT_S)
        shutil.rmtree(self._socket_folder, ignore_errors=True)


def supervise(command: list[str], folder: Path) -> int:
    """Run the worker, return its exit status; restart it if a signal killed it after the journal in folder grew.

    A cell may kill its worker. Status after a final death by signal: 128 + signal; 143 if the run of this job ends
    first.
    """
    asked: list[int] = []
    run = _run_above()
    while True:
        before = _size(folder)
        process = subprocess.Popen(command, preexec_fn=functools.partial(die_with, os.getpid()))
        _forward_signals(process, asked)
        if run is not None and not _ends_before(process, run):
            say("the run has ended; so does what it measures")
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEATH_TIMEOUT_S)
            return 128 + signal.SIGTERM  # the worker dies with this process
        code = process.wait()
        if code >= 0 or asked:
            return code if code >= 0 else 128 - code
        if _size(folder) == before:
            say(f"the worker {exit_text(code)} before its first cell; run it again")
            return 128 - code
        say(f"the worker {exit_text(code)}; starting it again")


def _run_above() -> int | None:
    """Pid descriptor of the run that this job is part of; None on a cluster, when started by hand, or without Linux."""
    number = os.environ.get(RUN, "")
    if not number.isdecimal() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(int(number))
    except OSError:
        return None


def _ends_before(process: subprocess.Popen[bytes], run: int) -> bool:
    """Wait until one of both ends; return whether the process did."""
    descriptor = os.pidfd_open(process.pid)
    try:
        ready, _, _ = select.select([descriptor, run], [], [])
        return descriptor in ready
    finally:
        os.close(descriptor)


def _forward_signals(process: subprocess.Popen[bytes], asked: list[int]) -> None:
    """Forward stop signals to the worker, which then ends by itself, and append each to asked."""

    def forward(number: int, _: object) -> None:
        asked.append(number)
        process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, forward)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.jsonl")) if folder.is_dir() else 0
