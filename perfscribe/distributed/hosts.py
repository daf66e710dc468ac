"""Nodes of the batch job that this process is part of, in the scheduler's order."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path

from perfscribe.base import commands

ANSWER_S = 60.0


def of_job(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the job's nodes; empty outside a job.

    Slurm is queried, because within a step of one node SLURM_JOB_NODELIST names only that node. PBS lists the nodes in
    the file PBS_NODEFILE, once per task.
    """
    nodes = _slurm_nodes(environment.get("SLURM_JOB_ID", "")) or environment.get("SLURM_JOB_NODELIST", "")
    if nodes:
        return list(expand(nodes))
    path = Path(environment.get("PBS_NODEFILE") or "/nonexistent")
    return list(dict.fromkeys(path.read_text().split())) if path.is_file() else []


@cache
def _slurm_nodes(number: str) -> str:
    """Return the job's nodes in Slurm's short form; empty if Slurm does not answer."""
    command = ("squeue", "--noheader", f"--jobs={number}", "--format=%N")
    return (number and commands.output(*command, timeout_s=ANSWER_S)) or ""


def expand(text: str) -> Iterator[str]:
    """Yield host names from Slurm's short form: "a[1-2,09],b" gives a1, a2, a09, b.

    Raises ValueError for unbalanced brackets.
    """
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        pieces = re.split(r"\[(.*?)\]", part)  # of each two the second is a list of numbers
        yield from map("".join, product(*(_numbers(piece) if n % 2 else [piece] for n, piece in enumerate(pieces))))
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is no list of hosts")


def _numbers(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))


def address_towards(host: str) -> str:
    """Return this machine's address on the route to the host; sends nothing. Raises OSError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str | None:
    """Return the name of the interface with that address, or None."""
    import psutil

    address = address_towards(host)
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, routes in interfaces if address in {route.address for route in routes}), None)
