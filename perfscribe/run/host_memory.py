"""Host memory that a job may use."""

import os
from pathlib import Path

import psutil

from perfscribe.base import cgroups

MIB = 2**20


def limit_bytes(root: Path = Path("/")) -> int:
    """Host memory that this process may still use: the least of free memory and the limits of cgroups and Slurm.

    root: parent of /proc and /sys (another folder in tests).
    """
    of_groups = cgroups.limits("memory", "memory.max", "memory.limit_in_bytes", root)
    limits = [psutil.virtual_memory().available, *(int(text) for text in of_groups if text.isdecimal())]
    slurm = os.environ.get("SLURM_MEM_PER_NODE", "")  # MiB; 0: all of the node's memory
    if slurm.isdecimal() and int(slurm):
        limits.append(int(slurm) * MIB)
    return min(limits)
