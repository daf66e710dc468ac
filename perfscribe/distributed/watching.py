"""Exchanges messages with the ranks of a launch until all have given a result or one is to blame (failures.py)."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from perfscribe.base.processes import exit_text
from perfscribe.distributed import failures
from perfscribe.distributed.failures import Ending, Stack

if TYPE_CHECKING:
    from perfscribe.distributed.starting import ForkedRanks, LaunchedRanks

# Errors of a lost peer wait this long for the error that explains them.
EXPLANATION_S = 5.0
ANSWER_S = 3.0
EXIT_S = 10.0
LAST_MESSAGES_S = 1.0
POLL_S, ENDING_POLL_S = 0.5, 0.02
GREETING_BYTES = 256
RECEIVE_S = 10  # for a message that has begun; a stranger may send half of one


@dataclass(eq=False)
class _State:
    """State of a rank. has_result, result: of its latest work."""

    rank: int
    connection: Connection | None = None
    has_result: bool = False
    result: Any = None
    stack: Stack | None = None
    error: Ending | None = None
    closed: bool = False  # its connection
    gone_s: float = 0.0  # clock time at which its end was first noticed


class RunningRanks:
    """One launch as seen by its launcher; ranks connect to `address` with `token`.

    timeout_s: per result. log: lines that ranks sent with their results. Set `processes` once they are started.
    """

    processes: ForkedRanks | LaunchedRanks

    def __init__(self, world_size: int, timeout_s: float, host: str) -> None:
        self.world_size, self.timeout_s = world_size, timeout_s
        self._listener = socket.create_server((host, 0), backlog=256)
        self.address, self.token = f"{host}:{self._listener.getsockname()[1]}", secrets.token_hex(16)
        self.log: list[str] = []
        # -1: a process that has not found its rank
        self._states = {rank: _State(rank) for rank in range(-1, world_size)}
        self._connections: dict[Connection, _State | None] = {}  # None: has not sent the token
        self._began, self._first_ending = time.monotonic(), 0.0
        self._work: dict[str, Any] | None = None  # message to send to ranks once they have started

    def ask(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Let all ranks run the program; raises the exception that failures.py builds for the first failure.

        Ranks that have not started yet get the arguments when they connect.
        """
        self._read(0.0)
        if self._work is not None:  # the first time includes starting
            self._began = time.monotonic()
        self._work = {"work": arguments}
        for state in self._states.values():
            state.has_result, state.stack = False, None
            _send(state, self._work)
        while self._missing():
            self._raise_failure()
            poll_s = ENDING_POLL_S if any(state.gone_s for state in self._states.values()) else POLL_S
            self._read(min(poll_s, self._began + self.timeout_s - time.monotonic()))
        return [self._states[rank].result for rank in range(self.world_size)]

    def dismiss(self) -> None:
        """Let all ranks leave, and wait for that up to EXIT_S."""
        for state in self._states.values():
            _send(state, {"work": None})
        self._read_until(EXIT_S, lambda: all(self._states[rank].closed for rank in range(self.world_size)))

    def close(self) -> None:
        """Close all connections, on which ranks kill themselves."""
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.world_size) if not self._states[rank].has_result]

    # --- reading

    def _read(self, timeout_s: float) -> None:
        """Read what has come, waiting at most timeout_s for it, and exit codes."""
        for ready in wait([self._listener, *self._connections], max(0.0, timeout_s)):
            if ready is self._listener:
                accepted, _ = self._listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", RECEIVE_S, 0))
                self._connections[Connection(accepted.detach())] = None
            elif isinstance(ready, Connection):
                self._receive(ready)
        for rank in range(self.world_size):
            if self.processes.exit_code(rank) is not None:
                self._states[rank].gone_s = self._states[rank].gone_s or time.time()

    def _read_until(self, timeout_s: float, done: Callable[[], bool]) -> None:
        until = time.monotonic() + timeout_s
        while not done() and time.monotonic() < until:
            self._read(min(POLL_S, until - time.monotonic()))

    def _receive(self, connection: Connection) -> None:
        """Read a message; close the connection at its end, or if it does not begin with the token."""
        state = self._connections[connection]
        try:
            if state is None:
                self._greet(connection)
            else:
                self._apply(state, json.loads(connection.recv_bytes()))
        except (EOFError, OSError, ValueError):
            del self._connections[connection]
            connection.close()
            if state is not None:
                state.closed, state.gone_s = True, state.gone_s or time.time()

    def _greet(self, connection: Connection) -> None:
        token, _, rank = connection.recv_bytes(GREETING_BYTES).partition(b" ")
        if not hmac.compare_digest(token, self.token.encode()):
            raise ValueError("a stranger")
        state = self._connections[connection] = self._states[int(rank)]
        state.connection = connection
        if self._work is not None:
            _send(state, self._work)

    def _apply(self, state: _State, message: Mapping[str, Any]) -> None:
        if "result" in message:
            state.has_result, state.result = True, message["result"]
            self.log += message["log"]
        elif "error" in message:
            state.error = Ending(state.rank, **message["error"])
        elif "stack" in message:
            state.stack = Stack(**message["stack"])

    # --- judging

    def _ending(self, rank: int) -> Ending | None:
        """Return how a rank ended without a result; None while it may still report.

        Waits for the messages from before its death, and for its exit code.
        """
        state = self._states[rank]
        if state.has_result or state.error or not state.gone_s:
            return None if state.has_result else state.error
        waited_s, code = time.time() - state.gone_s, self.processes.exit_code(rank)
        if waited_s < LAST_MESSAGES_S and not state.closed:
            return None
        if waited_s < EXIT_S and code is None and self.processes.know_exit_codes:
            return None
        return Ending(rank, exit_text(code), state.gone_s)

    def _raise_failure(self) -> None:
        """Raise as soon as it is clear which rank is to blame, or when time is up."""
        endings, now = [ending for rank in self._states if (ending := self._ending(rank))], time.monotonic()
        ended = {ending.rank for ending in endings}
        silent = [rank for rank in self._missing() if rank not in ended]
        if endings:
            first = failures.guilty(endings)
            self._first_ending = self._first_ending or now
            waited = now >= self._first_ending + EXPLANATION_S and not any(self._states[rank].gone_s for rank in silent)
            if waited or not silent or not first.is_consequence:
                raise failures.error_of(first, self.world_size)
        elif error := self.processes.failure():
            self._read_until(LAST_MESSAGES_S, lambda: False)  # those still in transit
            if not any(map(self._ending, self._states)) and self._missing():
                raise error
        if now >= self._began + self.timeout_s:
            raise self._silence_error(silent)

    def _silence_error(self, silent: list[int]) -> Exception:
        started = [self._states[rank] for rank in silent if self._states[rank].connection]
        for state in started:
            _send(state, {"ask": "stack"})
        self._read_until(ANSWER_S, lambda: all(state.stack for state in started))
        stacks = {rank: stack for rank in silent if (stack := self._states[rank].stack)}
        never = [rank for rank in silent if self._states[rank] not in started]
        return failures.error_of_silence(
            stacks, silent, self.world_size, f"no result after {self.timeout_s:g} s", never
        )


def _send(state: _State, message: Mapping[str, Any]) -> None:
    """Send a message to a rank; ignored if it is gone or has not started."""
    with contextlib.suppress(OSError):
        if state.connection:
            state.connection.send_bytes(json.dumps(message).encode())
