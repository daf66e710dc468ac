"""Starts ranks quickly: a process that has imported torch forks them, 0.2 s for two on two cores.

(Fresh interpreters that import torch concurrently take 5 s there. multiprocessing's fork server leaves a folder behind
if its owner is killed, as cells are, and its processes hold each other's descriptors.)

launcher -> server, one for the launcher's life -> agent, one per launch -> ranks. Each ends with its parent: the server
when its socket closes, the others by the kernel on Linux, ranks also by themselves (channel.Channel).
The server must never touch CUDA, which does not survive a fork: torch is set to count GPUs through NVML.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from perfscribe.base.processes import die_with
from perfscribe.distributed import rank as rank_module
from perfscribe.distributed.needs import PRELOADED


class ForkServer:
    """The launcher's side: starts the server at start() or the first agent(), and again if it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self, preloaded: Sequence[str]) -> None:
        """Start the server early, so that its imports overlap with the caller's; ignored if it runs."""
        with self._lock:
            self._server_control(preloaded)

    def agent(self) -> socket.socket:
        """Return a connection to a new agent, which waits for an order as a JSON line (see raise_ranks)."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._server_control(PRELOADED), [b"\n"], [theirs.fileno()])
        return ours

    def _server_control(self, preloaded: Sequence[str]) -> socket.socket:
        if self._process is None or self._control is None or self._process.poll() is not None:
            if self._control is not None:
                self._control.close()
            self._control, theirs = socket.socketpair()
            more = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno()), *preloaded],
                    stdin=subprocess.DEVNULL,
                    env=dict(os.environ) | more,
                    pass_fds=[theirs.fileno()],
                )
        return self._control


SERVER = ForkServer()


def serve(descriptor: int, preloaded: Sequence[str]) -> None:
    """Fork an agent for each incoming connection; returns when the launcher closes its end."""
    for name in preloaded:
        importlib.import_module(name)
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the launcher
    signal.signal(signal.SIGCHLD, _reap)
    here = os.getpid()

    def act_as_agent() -> None:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(here)
        raise_ranks(socket.socket(fileno=descriptors[0]))

    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        _fork(act_as_agent)
        os.close(descriptors[0])


def _reap(*_: object) -> None:
    """Wait for ended agents, so that their CPU time and their ranks' counts as the server's children's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def raise_ranks(launcher: socket.socket) -> None:
    """Read an order, one JSON line with each rank's environment and the program; fork its ranks.

    Sends one JSON line with their process ids, then a line [rank, exit code] as each ends.
    """
    order = json.loads(launcher.makefile("rb").readline())
    agent = os.getpid()

    def act_as_rank(variables: dict[str, str]) -> None:
        launcher.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(order["folder"])
        sys.path[:] = order["path"]
        rank_module.main(order, agent)

    def say(what: list[int]) -> None:
        launcher.sendall(json.dumps(what).encode() + b"\n")

    pids = [_fork(act_as_rank, variables) for variables in order["environment"]]
    say(pids)
    for _ in pids:
        pid, status = os.wait()
        with contextlib.suppress(BrokenPipeError):  # the launcher has gone, and ranks end with it
            say([pids.index(pid), os.waitstatus_to_exitcode(status)])


def _fork(act: Callable[..., Any], *arguments: Any) -> int:
    """Fork a child that runs act() and exits in any case, never continuing the parent's code; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            act(*arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    return pid


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
