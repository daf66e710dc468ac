"""Runs a script of the workflow through the server of its kind, else as itself: client.py SCRIPT [ARGUMENT ...]

Imports the standard library alone, and little of it: a job starts with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

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
FORWARDED = (signal.SIGINT, signal.SIGTERM)


def address(name: str, kind: str) -> str:
    """Of a server's socket: abstract, hence without a file that could be left behind."""
    return f"\0{name}-{kind.split()[0]}"


def run(name: str, words: list[str]) -> int | None:
    """Exit status of the script, minus the number of a signal that ended it; None where no server takes it."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.connect(address(name, KINDS[os.path.basename(words[0])]))
        credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            return None
        order = {"argv": words, "cwd": os.getcwd(), "environ": dict(os.environ)}
        # Before the order is out: a signal that comes now would end this process, and the job with it.
        for number in FORWARDED:
            signal.signal(number, lambda number, _: control.send(bytes([number])))
        text = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(control, [text], [1, 2])
        control.sendall(text[sent:])
        told = [json.loads(line) for line in control.makefile("rb")]
    except (OSError, KeyError):
        return None
    if not told or "refused" in told[0]:
        return None
    return int(told[-1].get("exit", -signal.SIGKILL))


def main() -> NoReturn:
    """End as the script does."""
    words = sys.argv[1:]
    name = os.environ.pop(VARIABLE, OFF)
    code = None if name == OFF else run(name, words)
    if code is None:
        os.execv(sys.executable, [sys.executable, *words])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
