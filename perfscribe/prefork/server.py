"""The servers of a run: each imports what its kind of job takes when the first one comes, then forks a process a job.

A client connects to an abstract socket, which other users may see and which is not answered where they ask. It sends
one JSON line {"argv", "cwd", "environ"} with its standard output and error, then the numbers of signals, a byte each;
it hears lines: {"refused": why}, or {"pid"} and at last {"exit"}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from perfscribe.lifeline import die_with_parent
from perfscribe.prefork import forked
from perfscribe.prefork.client import DRAWING, MEASURING, MEASURING_WITH_TORCH, address

OWN = ("perfscribe.worker", "perfscribe.child")
# What the first job of a kind finds, and what the second does: a run of one job imports no more than it would itself.
# torch._dynamo is what the first optimizer of a process imports.
PRELOADED: dict[str, list[tuple[str, ...]]] = {
    MEASURING: [OWN],
    MEASURING_WITH_TORCH: [("torch", "torch.distributed", *OWN), ("torch._dynamo",)],
    DRAWING: [("perfscribe.presenting",), ("perfscribe.report",)],
}
# What libraries read when they are loaded, and what says that a job runs elsewhere.
LIBRARIES = ("ATEN", "CUBLAS", "CUDA", "DNNL", "GOMP", "GOTO", "KMP", "LD_", "MALLOC", "MKL", "NCCL", "OMP", "ONEDNN")
READ_EARLY = (*LIBRARIES, "NUMEXPR", "OPENBLAS", "PYTHON", "PYTORCH", "TORCH", "PBS", "SLURM")
THREADS = "_NUM_THREADS"
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # jobs' to answer: servers stay until the run has ended
LINE_BYTES = 1 << 20


def main(name: str, pipe: int, kinds: Sequence[str]) -> None:
    """Serve jobs of these kinds until the other end of the pipe closes and the last job has ended."""
    for number in IGNORED:
        if signal.signal(number, signal.SIG_IGN) is signal.SIG_IGN:
            forked.ignored.add(number)
    listeners = {kind: _listen(address(name, kind)) for kind in kinds}
    here = os.getpid()
    for kind in listeners:
        if os.fork() == 0:
            die_with_parent(here)
            serve(kind, listeners[kind], pipe)
            os._exit(0)
    os.write(1, b"\n")
    os.close(1)
    _wait_for_children()


def _wait_for_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _listen(where: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(where)
    listener.listen(64)
    return listener


def serve(kind: str, listener: socket.socket, pipe: int) -> None:
    """Fork a keeper for each connection of this user until the pipe closes; jobs that are under way go on."""
    environment, here = dict(os.environ), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes keepers away
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    ahead = list(PRELOADED[kind])
    while pipe not in select.select([listener.fileno(), pipe], [], [])[0]:
        control, _ = listener.accept()
        if _user(control) == os.getuid():
            for module in ahead.pop(0) if ahead else ():
                with contextlib.suppress(Exception):  # the job's to report
                    importlib.import_module(module)
            with contextlib.suppress(OSError):  # no process to be had: the client is its script itself
                if os.fork() == 0:
                    _keep_to_the_end(here, control, kind, environment)
        control.close()
    listener.close()
    _wait_for_children()


def _keep_to_the_end(server: int, control: socket.socket, kind: str, environment: Mapping[str, str]) -> NoReturn:
    try:
        die_with_parent(server)
        keep(control, kind, environment)
    except (OSError, ValueError):  # the client has left
        pass
    finally:
        os._exit(0)


def _user(control: socket.socket) -> int:
    credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def keep(control: socket.socket, kind: str, environment: Mapping[str, str]) -> None:
    """One job from its order to its end: signals go to it; where its client leaves, it is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order, outputs, early = _order(control)
    differing = sorted(_read_early(order["environ"], kind) ^ _read_early(environment, kind))
    if differing:
        _say(control, {"refused": f"{differing[0][0]} differs"})
        return
    process = forked.Forked(_job, (order, outputs), keep=outputs)
    for descriptor in outputs:
        os.close(descriptor)
    _say(control, {"pid": process.pid})
    for number in early:
        process.send_signal(number)
    watched = os.pidfd_open(process.pid)
    while True:
        ready, _, _ = select.select([watched, control.fileno()], [], [])
        if watched in ready:
            _say(control, {"exit": process.wait()})
            return
        numbers = control.recv(16)
        for number in numbers or (signal.SIGKILL,):
            process.send_signal(number)
        if not numbers:
            return


def _order(control: socket.socket) -> tuple[dict[str, Any], list[int], bytes]:
    """The order, the client's outputs, and signals that came behind it."""
    text, outputs, _, _ = socket.recv_fds(control, LINE_BYTES, 2)
    while b"\n" not in text:
        piece = control.recv(LINE_BYTES)
        if not piece:
            raise ConnectionError("the client has left")
        text += piece
    line, _, early = text.partition(b"\n")
    order: dict[str, Any] = json.loads(line)
    return order, outputs, early


def _read_early(environment: Mapping[str, str], kind: str) -> set[tuple[str, str]]:
    """Threads count where something is timed alone."""
    left_out = THREADS if kind == DRAWING else ()
    return {
        (name, text)
        for name, text in environment.items()
        if name.startswith(READ_EARLY) and not (left_out and name.endswith(left_out))
    }


def _job(order: Mapping[str, Any], outputs: list[int]) -> None:
    """Be the script: its standard streams, environment, folder and arguments."""
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    forked.take_environment(order["environ"])
    os.chdir(order["cwd"])
    forked.run_script(order["argv"])


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
