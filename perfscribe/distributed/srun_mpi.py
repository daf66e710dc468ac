"""Whether srun's tasks are one MPI world: where Slurm and MPI have no common plug-in, each is a world of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


@cache
def starts_mpi() -> bool:
    """Asks two tasks; True outside of a Slurm job and without mpi4py, which are told by others."""
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None or not importlib.util.find_spec("mpi4py"):
        return True
    from perfscribe.distributed import launchers, mpi_start

    command = [*launchers.command("slurm", 2), mpi_start.SAY, "1"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True, stdin=subprocess.DEVNULL
        )
        said = [json.loads(line)[mpi_start.SPLIT] for line in done.stdout.splitlines() if line.startswith("{")]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return False
    return len(said) == 2 and all(one[1] == 2 for one in said)
