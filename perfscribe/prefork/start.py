"""Starting a run's servers."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from perfscribe.prefork.client import OFF, VARIABLE

# As Snakemake sets them to a job's cores (snakemake.shell).
THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")


def start(
    root: Path, environment: MutableMapping[str, str], kinds: Sequence[str], cores: int
) -> subprocess.Popen[bytes] | None:
    """Start the servers and name them in the environment that jobs inherit.

    root: the checkout. kinds: of their jobs (client.py). cores: of a measuring job. They take jobs as long as this
    process lives. Without Linux, its pidfd and /proc, or where the environment says off, there are none: None, and jobs
    start by themselves.
    """
    if environment.get(VARIABLE) == OFF or not _is_able():
        return None
    name = f"perfscribe-{secrets.token_hex(16)}"
    theirs, ours = os.pipe()  # this end closes with this process, and no other has it
    process = subprocess.Popen(
        [sys.executable, "-m", "perfscribe.prefork.server", name, str(theirs), *kinds],
        cwd=root,
        env={**environment, **{f"{name}_NUM_THREADS": str(cores) for name in THREADS}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
    )
    os.close(theirs)
    _PIPES.append(ours)
    assert process.stdout is not None
    if process.stdout.read(1):
        environment[VARIABLE] = name
    return process


_PIPES: list[int] = []


def _is_able() -> bool:
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open") or not os.path.isdir("/proc/self/fd"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
