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
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 60.0
GREETING_BYTES = 4096
MESSAGE_BYTES = 256 * 2**20
OUTPUT_LINE_BYTES = 2**16
# Printed by a rank behind what NCCL has logged of a piece of work, before it gives the result.
END_OF_LOG = "perfscribe: end of log"
MESSAGES, OUTPUT, AGENT = "messages", "output", "agent"


@dataclass(frozen=True)
class Event:
    """Something that happened on the hub.

    kind: message (data: what a rank said), output (data: a line that it printed), closed (its messages ended) or exit
    (data: the exit code that its agent saw). rank: -1 where no rank is meant.
    """

    kind: str
    rank: int = -1
    data: Any = None


class _Peer:
    """One accepted connection; anonymous until its greeting has been read."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.rank: int | None = None
        self.stream = ""
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def lines(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes; ValueError where one is longer than its stream allows."""
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        whole: list[bytes] = []
        if b"\n" in piece:
            *whole, rest = b"".join(self._pieces).split(b"\n")
            self._pieces, self._held_bytes = [rest], len(rest)
        limit = GREETING_BYTES if self.rank is None else MESSAGE_BYTES
        if self.stream == OUTPUT and self._held_bytes > OUTPUT_LINE_BYTES:
            whole.append(self.rest())
        elif self._held_bytes > limit:
            raise ValueError("line too long")
        return whole

    def rest(self) -> bytes:
        """What came in since the last whole line."""
        held = b"".join(self._pieces)
        self._pieces, self._held_bytes = [], 0
        return held


class Hub:
    """The launcher's end. Listens on a port that the kernel chooses; nothing is left after close()."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._listener = socket.create_server((host, 0), backlog=256)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._ranks: dict[int, _Peer] = {}
        self.token = secrets.token_hex(16)
        self.address = f"{host}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def adopt(self, connection: socket.socket, stream: str) -> None:
        """Read from a connection of the launcher's own: OUTPUT of its processes, or what a AGENT says of ranks."""
        peer = _Peer(connection)
        peer.rank, peer.stream = -1, stream
        self._selector.register(connection, selectors.EVENT_READ, peer)

    @property
    def connected(self) -> bool:
        """Whether anything that a rank may still say or print has not been read."""
        return any(isinstance(key.data, _Peer) for key in self._selector.get_map().values())

    def poll(self, timeout_s: float) -> list[Event]:
        """What happened, waiting at most timeout_s for the first of it."""
        events: list[Event] = []
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Peer):
                events += self._read(key.data)
        return events

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Say something to a rank; one that is gone does not hear it."""
        peer = self._ranks.get(rank)
        if peer is not None:
            with contextlib.suppress(OSError):
                peer.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close every connection, which ends ranks that are still there."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Peer):
                key.data.socket.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.settimeout(CONNECT_TIMEOUT_S)
            self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> list[Event]:
        try:
            piece = peer.socket.recv(2**16)
            return self._end(peer) if not piece else self._events(peer, peer.lines(piece))
        except (OSError, ValueError):
            return self._end(peer)

    def _events(self, peer: _Peer, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            if peer.rank is None:
                events += self._greet(peer, json.loads(line))
            elif peer.stream == OUTPUT:
                events.append(Event("output", peer.rank, line.decode(errors="replace")))
            elif peer.stream == AGENT:
                said = json.loads(line)
                events.append(Event("exit", said["rank"], said["exit"]))
            else:
                events.append(Event("message", peer.rank, json.loads(line)))
        return events

    def _greet(self, peer: _Peer, greeting: Any) -> list[Event]:
        """Take a connection for what its first line says; ValueError for a stranger's."""
        if not isinstance(greeting, dict) or not hmac.compare_digest(str(greeting.get("token")), self.token):
            raise ValueError("stranger")
        peer.rank, peer.stream = int(greeting["rank"]), str(greeting["stream"])
        if peer.stream == OUTPUT:
            return []
        self._ranks[peer.rank] = peer
        return [Event("message", peer.rank, {"hello": greeting})]

    def _end(self, peer: _Peer) -> list[Event]:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.rank is None or peer.stream == AGENT:
            return []
        if peer.stream == OUTPUT:
            rest = peer.rest()
            return [Event("output", peer.rank, rest.decode(errors="replace"))] if rest else []
        self._ranks.pop(peer.rank, None)
        return [Event("closed", peer.rank)]


class Channel:
    """A rank's end. Its thread waits for the launcher without using the processor.

    When the launcher is gone the thread ends this process and the others of its process group, whatever they do.
    answer: what to reply to {"ask": name}, by name.
    """

    def __init__(self, address: str, token: str, rank: int, answer: dict[str, Callable[[], Any]]) -> None:
        self._socket = _connect(address, {"token": token, "rank": rank, "stream": MESSAGES, "pid": os.getpid()})
        self._address, self._token, self._rank = address, token, rank
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
        output = _connect(self._address, {"token": self._token, "rank": self._rank, "stream": OUTPUT})
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        output.close()
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
