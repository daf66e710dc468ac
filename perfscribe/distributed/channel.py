"""Messages between the ranks of a launch and the process that launched them: JSON lines over TCP.

Each rank opens two connections to the launcher's hub and authenticates with a token that only the launch knows: one for
messages, one that becomes its standard output and error. The kernel closes them when a process dies in any way, so that
the hub notices a rank's death at once, and a rank its launcher's. No files, no clean-up, and the same for ranks on this
machine, under torchrun or mpiexec, or on another node.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from perfscribe.distributed.transport import LOOPBACK

CONNECT_TIMEOUT_S = 60.0
GREETING_BYTES = 4096
OUTPUT_LINE_BYTES = 2**16
# Printed by a rank after NCCL's log of a piece of work, before it sends the result.
END_OF_LOG = "perfscribe: end of log"
MESSAGES, OUTPUT = "messages", "output"


@dataclass(frozen=True)
class Event:
    """An event that the hub received from a rank; rank -1 if from none.

    kind: message (data: its content), output (data: a line printed) or closed (data: the stream that ended).
    """

    kind: str
    rank: int
    data: Any


class Hub:
    """The launcher's end: one thread per connection puts incoming events into `events`, until close()."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._listener = socket.create_server((host, 0), backlog=256)
        self._connections: list[socket.socket] = []
        self._ranks: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.token = secrets.token_hex(16)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="hub", daemon=True).start()

    def hear(self, function: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Run a function that reads to some end, in a new thread."""
        thread = threading.Thread(target=function, args=arguments, name="hub", daemon=True)
        thread.start()
        self._threads.append(thread)  # after start(): another thread may join it
        return thread

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Send a message to a rank; ignored if the rank is gone."""
        if rank in self._ranks:
            with contextlib.suppress(OSError):
                self._ranks[rank].sendall(json.dumps(message).encode() + b"\n")

    def wait_for_ends(self, timeout_s: float) -> None:
        """Wait until all messages and output have been read, once the ranks are gone."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Close every connection, which ends the remaining ranks."""
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the reading thread
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(CONNECT_TIMEOUT_S)
                self._connections.append(connection)
                self.hear(self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        """Read a connection to its end as its first line declares; close it if the token is wrong."""
        with connection, contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            greeting = json.loads(lines.readline(GREETING_BYTES))
            if isinstance(greeting, dict) and hmac.compare_digest(str(greeting.get("token")), self.token):
                connection.settimeout(None)
                rank = int(greeting["rank"])
                if greeting["stream"] == OUTPUT:
                    self.read_output(lines, rank)
                else:
                    self._ranks[rank] = connection
                    self._read_messages(lines, rank)

    def _read_messages(self, lines: BinaryIO, rank: int) -> None:
        self.events.put(Event("message", rank, {"hello": True}))
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self.events.put(Event("message", rank, json.loads(line)))
        self.events.put(Event("closed", rank, MESSAGES))

    def read_output(self, lines: BinaryIO, rank: int) -> None:
        """Read a stream's output to its end; splits lines that are too long."""
        with contextlib.suppress(OSError):
            while line := lines.readline(OUTPUT_LINE_BYTES):
                self.events.put(Event("output", rank, line.decode(errors="replace").removesuffix("\n")))
        self.events.put(Event("closed", rank, OUTPUT))


class Channel:
    """A rank's end. Its thread waits for the launcher without using CPU time.

    When the launcher is gone, the thread kills this process and the others of its process group.
    answer: functions that answer {"ask": name}, by name.
    """

    def __init__(self, address: str, token: str, rank: int, answer: dict[str, Callable[[], Any]]) -> None:
        self._connect = lambda stream: _connect(address, {"token": token, "rank": rank, "stream": stream})
        self._socket = self._connect(MESSAGES)
        self._answer = answer
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="perfscribe launcher", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the launcher; raises TypeError or ValueError if it is not JSON (no NaN or infinity)."""
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def redirect_output(self) -> None:
        """Send standard output and error of this process, its libraries and children to the launcher."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._connect(OUTPUT) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)  # the old ones may remember positions in a file

    def next_work(self) -> dict[str, Any] | None:
        """Wait for arguments to run the program with; None: leave, as no rank needs another any more."""
        return self._work.get()

    def _listen(self) -> None:
        with contextlib.suppress(Exception), self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                asked = message.get("ask", "")
                if asked == "work":
                    self._work.put(message["arguments"])
                elif asked == "leave":
                    self._work.put(None)
                elif asked == "die":
                    break
                elif asked in self._answer:
                    self.send({asked: self._answer[asked]()})
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)


def _text_stream(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True)


def _connect(address: str, greeting: dict[str, Any]) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
    connection.settimeout(None)
    connection.sendall(json.dumps(greeting).encode() + b"\n")
    return connection
