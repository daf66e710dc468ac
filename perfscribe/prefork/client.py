"""Runs a script of the workflow through the server of its kind, else as itself: client.py SCRIPT [ARGUMENT ...]

Imports the standard library alone, and little of it: a job starts with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

VARIABLE = "PERFSCRIBE_FORK_SERVERS"  # the name of a run's servers
OFF = "off"  # said by a user: none are started
MEASURING, DRAWING = "measuring", "drawing"
MEASURING_WITH_TORCH = f"{MEASURING} with torch"
KINDS = {
    "measure.py": MEASURING,
    "present.py": DRAWING,
    "report.py": DRAWING,
    "write_html.py": DRAWING,
    "verdict.py": DRAWING,
}
# What starting a process costs is a figure of its: the first compilation takes in the import of torch's compiler.
STARTS_ITSELF = re.compile(r"measure-torch_compile-\d+\.json")
FORWARDED = (signal.SIGINT, signal.SIGTERM)


def address(name: str, kind: str) -> str:
    """Of a server's socket: abstract, hence without a file that could be left behind."""
    return f"\0{name}-{kind.split()[0]}"


def run(name: str, words: list[str]) -> int | None:
    """Exit status of the script, minus the number of a signal that ended it; None where no server takes it."""
    kind = KINDS.get(os.path.basename(words[0]))
    if kind is None or any(STARTS_ITSELF.fullmatch(os.path.basename(word)) for word in words):
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asked: list[int] = []

    def forward(number: int, _: object) -> None:
        asked.append(number)
        with contextlib.suppress(OSError):  # it has ended
            control.send(bytes([number]))

    # Until the order is out: a signal's byte within it would spoil it, and its default would end this process alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        control.connect(address(name, kind))
        credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            return None
        _send_order(control, words)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, forward)
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    heard = _heard(control)
    if heard and "refused" not in heard[0]:
        return int(heard[-1].get("exit", -signal.SIGKILL))
    return -asked[0] if asked else None


def _send_order(control: socket.socket, words: list[str]) -> None:
    order = {"argv": words, "cwd": os.getcwd(), "environ": dict(os.environ)}
    text = json.dumps(order).encode() + b"\n"
    sent = socket.send_fds(control, [text], [1, 2])
    control.sendall(text[sent:])


def _heard(control: socket.socket) -> list[dict[str, Any]]:
    """All that the server said, to its end; a line that broke off is none."""
    heard = []
    with contextlib.suppress(OSError, ValueError):
        for line in control.makefile("rb"):
            heard.append(json.loads(line))
    return heard


def main() -> NoReturn:
    """End as the script does."""
    words = sys.argv[1:]
    name = os.environ.pop(VARIABLE, OFF)
    code = None if name == OFF else run(name, words)
    if code is None:
        os.execv(sys.executable, [sys.executable, *words])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
