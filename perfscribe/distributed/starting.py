"""The processes of a launch: started by this one, or by another launcher such as torchrun or mpiexec."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import rank as rank_module
from perfscribe.distributed.channel import AGENT, OUTPUT, Hub
from perfscribe.distributed.failures import RankError, RankTimeout
from perfscribe.distributed.fork_server import SERVER

FORK, SPAWN = "fork", "spawn"
EXIT_S = 10.0
DEATH_S = 30.0


class Job(Protocol):
    """The processes of a launch. tells_exits: whether the hub hears how each of them ends."""

    tells_exits: bool

    def ended(self) -> str:
        """Why no further rank can report; empty while one can."""

    def end(self) -> None:
        """End all processes; returns when they are gone."""


class OwnRanks:
    """Ranks on this machine, below the fork server: forked from it, or fresh interpreters.

    Each leads a process group, so that what it starts ends with it. RankTimeout, RankError: the server gives none.
    """

    tells_exits = True

    def __init__(self, order: Mapping[str, Any], hub: Hub, timeout_s: float) -> None:
        self._agent = SERVER.agent()
        try:
            self._agent.settimeout(timeout_s)
            self._agent.sendall(json.dumps(order, allow_nan=False).encode() + b"\n")
            self._pids = [_pid(self._agent) for _ in range(order["world_size"])]
        except OSError as error:
            self._agent.close()
            kind = RankTimeout if isinstance(error, TimeoutError) else RankError
            raise kind(f"the fork server gave no ranks: {type(error).__name__}: {error}") from error
        hub.adopt(self._agent, AGENT)

    def ended(self) -> str:
        """Each rank's end is seen by itself."""
        return ""

    def end(self) -> None:
        """Kill the ranks and what they started, and wait until the agent has seen them go."""
        for pid in self._pids:
            for kill in (os.killpg, os.kill):  # the process alone where it does not lead its group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # the hub has seen its end; or the kernel cannot end one: a driver hangs
            self._agent.settimeout(DEATH_S)
            while self._agent.recv(2**12):
                pass


def _pid(agent: socket.socket) -> int:
    """The next process number that the agent tells, without reading further than its line."""
    line = b""
    while not line.endswith(b"\n"):
        piece = agent.recv(1)
        if not piece:
            raise ConnectionError("it has ended")
        line += piece
    return int(json.loads(line)["pid"])


def exit_text(code: int | None) -> str:
    """An exit status in words."""
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"died by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"died by signal {-code}"


class OtherLauncher:
    """Another launcher's process, which starts the ranks. It is told to run this package's rank module."""

    tells_exits = False

    def __init__(self, command: Sequence[str], order: Mapping[str, Any], hub: Hub) -> None:
        self._name = command[2] if command[0] == sys.executable else os.path.basename(command[0])
        self._ranks, self._hub = range(order["world_size"]), hub
        if shutil.which(command[0]) is None:
            raise Unsupported(f"no {self._name} here")
        ours, theirs = socket.socketpair()
        hub.adopt(ours, OUTPUT)
        with theirs:
            self._process = subprocess.Popen(
                [*command, rank_module.__name__],
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                env=dict(os.environ) | {rank_module.ORDER_VARIABLE: json.dumps(order)},
                process_group=0,
            )

    def ended(self) -> str:
        """How the launcher ended."""
        code = self._process.poll()
        return "" if code is None else f"{self._name} {exit_text(code)}"

    def end(self) -> None:
        """Let the ranks end themselves, then the launcher."""
        for rank in self._ranks:
            self._hub.send(rank, {"ask": "die"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
