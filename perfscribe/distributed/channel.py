"""A rank's connection to the process that launched it: JSON messages over TCP.

A rank begins with a token that only the launch knows, and its number. The kernel closes the connection when either
process dies in any way, so that each notices the other's death at once: on this machine, under another launcher, on
another node. The launcher's end is in watching.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Client
from queue import SimpleQueue
from typing import Any


class Channel:
    """A rank's end. Its thread waits for the launcher without using CPU time.

    When the launcher is gone, the thread kills this process and the others of its process group.
    answers: functions that answer {"ask": name}, by name.
    """

    def __init__(self, address: str, token: str, rank: int, answers: dict[str, Callable[[], Any]]) -> None:
        host, _, port = address.rpartition(":")
        self._connection = Client((host, int(port)))
        self._connection.send_bytes(f"{token} {rank}".encode())
        self._answers, self._lock = answers, threading.Lock()
        self._work: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threading.Thread(target=self._listen, name="perfscribe launcher", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the launcher; raises TypeError or ValueError if it is not JSON (no NaN or infinity)."""
        text = json.dumps(message, allow_nan=False).encode()
        with self._lock:
            self._connection.send_bytes(text)

    def next_work(self) -> dict[str, Any] | None:
        """Wait for arguments to run the program with; None: leave, as no rank needs another any more."""
        return self._work.get()

    def _listen(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                message = json.loads(self._connection.recv_bytes())
                if "work" in message:
                    self._work.put(message["work"])
                else:
                    self.send({message["ask"]: self._answers[message["ask"]]()})
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)
