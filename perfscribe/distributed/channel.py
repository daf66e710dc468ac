"""What the ranks of a launch and the process that launched them say to each other: JSON lines over TCP.

Each rank opens two connections to the launcher's hub and names itself by a token that only the launch knows: one for
messages, one that becomes its standard output and error. The kernel closes them when a process dies, however it dies,
so that the hub learns of a death at once and a rank of its launcher's. No file, nothing to clean up, and the same for
ranks on this machine, below torchrun or mpiexec, or on another node.
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
# Printed by a rank behind what NCCL has logged of a piece of work, before it gives the result.
END_OF_LOG = "perfscribe: end of log"
MESSAGES, OUTPUT = "messages", "output"


@dataclass(frozen=True)
class Event:
    """Something that the hub heard of a rank; of rank -1 where none is meant.

    kind: message (data: what it said), output (data: a line that it printed), closed (data: which of its streams
    ended) or exit (data: its exit code).
    """

    kind: str
    rank: int
    data: Any


class Hub:
    """The launcher's end: a thread for each connection puts what it hears into events, until close()."""

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
        """Call a function that reads to some end, in a thread of its own."""
        thread = threading.Thread(target=function, args=arguments, name="hub", daemon=True)
        thread.start()
        self._threads.append(thread)  # started: another thread may join it
        return thread

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Say something to a rank; one that is gone does not hear it."""
        if rank in self._ranks:
            with contextlib.suppress(OSError):
                self._ranks[rank].sendall(json.dumps(message).encode() + b"\n")

    def wait_for_ends(self, timeout_s: float) -> None:
        """Wait until all that was said and printed has been heard, once the ranks are gone."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Close every connection, which ends ranks that are still there."""
        for one in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(CONNECT_TIMEOUT_S)
                self._connections.append(connection)
                self.hear(self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        """Read a connection to its end as what its first line says; a stranger's is closed."""
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
        """Hear what is printed into a stream to its end; lines that are too long are cut."""
        with contextlib.suppress(OSError):
            while line := lines.readline(OUTPUT_LINE_BYTES):
                self.events.put(Event("output", rank, line.decode(errors="replace").removesuffix("\n")))
        self.events.put(Event("closed", rank, OUTPUT))


class Channel:
    """A rank's end. Its thread waits for the launcher without using the processor.

    When the launcher is gone the thread ends this process and the others of its process group, whatever they do.
    answer: what to reply to {"ask": name}, by name.
    """

    def __init__(self, address: str, token: str, rank: int, answer: dict[str, Callable[[], Any]]) -> None:
        self._connect = lambda stream: _connect(address, {"token": token, "rank": rank, "stream": stream})
        self._socket = self._connect(MESSAGES)
        self._answer = answer
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="perfscribe launcher", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Say something to the launcher. TypeError, ValueError: it is no JSON (NaN and infinity are none)."""
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def redirect_output(self) -> None:
        """Let the launcher read what this process, its libraries and children write to standard output and error."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._connect(OUTPUT) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)  # the old ones may remember positions in a file

    def next_work(self) -> dict[str, Any] | None:
        """Wait for arguments to run the program with; None: to leave, as no rank needs another any more."""
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
