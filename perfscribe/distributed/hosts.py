"""The nodes of the batch job that this process is part of, in the scheduler's order."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ANSWER_S = 60.0


def of_job(environment: Mapping[str, str]) -> list[str]:
    """Names of the job's nodes; none outside of a job.

    Slurm is asked: within a step of one node SLURM_JOB_NODELIST names that node alone. PBS names them in the file that
    PBS_NODEFILE names, once for each of their tasks.
    """
    said = _of_slurm_job(environment.get("SLURM_JOB_ID", "")) or environment.get("SLURM_JOB_NODELIST", "")
    if said:
        return list(expand(said))
    path = Path(environment.get("PBS_NODEFILE") or "/nonexistent")
    return list(dict.fromkeys(path.read_text().split())) if path.is_file() else []


@cache
def _of_slurm_job(number: str) -> str:
    """The job's nodes in Slurm's short form; empty where Slurm does not say."""
    if not number or shutil.which("squeue") is None:
        return ""
    try:
        done = subprocess.run(
            ["squeue", "--noheader", f"--jobs={number}", "--format=%N"],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def expand(text: str) -> Iterator[str]:
    """Host names from Slurm's short form: "a[1-2,09],b" gives a1, a2, a09, b.

    ValueError: brackets that do not match.
    """
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        yield from _expand_one(part)
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is no list of hosts")


def _expand_one(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inner, _, after = rest.partition("]")
    for piece in inner.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expand_one(after):
                yield f"{before}{number:0{len(first)}d}{end}"


def address_towards(host: str) -> str:
    """This machine's own address on the way to the host; nothing is sent. OSError: there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str | None:
    """Name of the interface that has that address; None where none has it."""
    import psutil

    own = address_towards(host)
    names = (name for name, addresses in psutil.net_if_addrs().items() if any(one.address == own for one in addresses))
    return next(names, None)
