"""The nodes of the batch job that this process is part of, in the scheduler's order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path


def of_job(environment: Mapping[str, str]) -> list[str]:
    """Names of the job's nodes; none outside of a job.

    Slurm names them in SLURM_JOB_NODELIST, PBS in the file that PBS_NODEFILE names, once for each of their tasks.
    """
    if environment.get("SLURM_JOB_NODELIST"):
        return list(expand(environment["SLURM_JOB_NODELIST"]))
    path = Path(environment.get("PBS_NODEFILE") or "/nonexistent")
    return list(dict.fromkeys(path.read_text().split())) if path.is_file() else []


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
