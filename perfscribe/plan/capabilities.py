"""Capabilities that cells require, and whether this machine has them.

Nothing here imports torch or starts a CUDA context, so that login nodes, parsers and parent processes can call it.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from perfscribe.base import error_kinds
from perfscribe.distributed import hosts, launchers
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.instruments import nvml
from perfscribe.instruments.tools import find_tool
from perfscribe.records import libraries

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Condition:
    """A condition for a capability.

    reason: printed after the status if it is not met. fix: remedy in words. status: of a cell that lacks it.
    """

    met: Callable[[], bool] = field(compare=False)
    reason: str
    fix: str
    status: str = "unsupported"


def _package(module: str, fix: str = "") -> Condition:
    return Condition(lambda: libraries.installed(module), f"{module} is missing", fix or f"install {module}")


def _not_hidden(package: str) -> Condition:
    """Require that the checkout's root, first on the import path, has no file or folder named like the package.

    If the package is not installed, even an empty folder makes libraries believe that it is.
    """
    return Condition(
        lambda: not any((ROOT / name).exists() for name in (package, f"{package}.py")),
        f"'{package}' in the checkout is taken for the Python package {package}",
        f"rename the folder or file {package} in the checkout",
    )


def _torch_has_cuda() -> bool:
    build = libraries.constants("torch")
    if "cuda" in build:
        return build["cuda"] is not None
    return not (libraries.version("torch") or "+cpu").endswith("+cpu")


def _driver_fits_torch() -> bool:
    """Compare major versions: CUDA runs programs of its major version or an older one; unknown versions pass."""
    driver = nvml.cuda_driver_version()
    built_for = libraries.constants("torch").get("cuda")
    return not (driver and built_for) or int(built_for.split(".")[0]) <= int(driver.split(".")[0])


def _is_ampere_or_newer() -> bool:
    """Return True if unknown, so that a machine without a GPU reports only that."""
    versions = [nvml.ask("nvmlDeviceGetCudaComputeCapability", gpu) for gpu in nvml.visible_gpus()]
    return all(version[0] >= 8 for version in versions if version)


def _several_gpus(count: int) -> tuple[Condition, ...]:
    """Conditions of "cuda:<count>": those of "cuda", which report a lack of any GPU, then enough visible GPUs."""
    have = len(nvml.visible_gpus())
    reason, fix = f"{have} GPU{'' if have == 1 else 's'}", f"run on a machine with {count} GPUs"
    return (*_CUDA, Condition(lambda: have not in range(1, count), reason, fix, status="skipped"))


_CUDA = (
    Condition(lambda: libraries.installed("pynvml"), "nvidia-ml-py is missing", "install nvidia-ml-py"),
    Condition(lambda: bool(nvml.all_gpus()), "no CUDA device", "run on a machine with an NVIDIA GPU and its driver"),
    Condition(
        lambda: any(map(nvml.parts, nvml.all_gpus())) or not nvml.all_gpus(),
        "the GPU is in MIG mode and has no slice",
        "make a slice (nvidia-smi mig -cgi PROFILE -C)",
    ),
    Condition(
        lambda: bool(nvml.visible_gpus()) or not any(map(nvml.parts, nvml.all_gpus())),
        "CUDA_VISIBLE_DEVICES hides every GPU",
        "unset CUDA_VISIBLE_DEVICES, or name a GPU of this machine in it, once",
    ),
    _package("torch", "install a CUDA build of torch"),
    Condition(
        lambda: not libraries.installed("torch") or _torch_has_cuda(),
        "torch is a build without CUDA",
        "install a CUDA build of torch",
    ),
    Condition(
        _driver_fits_torch,
        "the NVIDIA driver is older than torch's CUDA version",
        "update the driver or install torch for the driver's CUDA version",
    ),
)


def _of_ampere(dtype: str) -> tuple[Condition, ...]:
    reason = f"the GPU has no {dtype} (compute capability below 8.0)"
    return (*_CUDA, Condition(_is_ampere_or_newer, reason, "use an A100 or a newer GPU"))


def _has_compiler(variable: str, *usual: str) -> bool:
    """Return whether the compiler named by the variable exists or, if it is unset, any of the usual ones."""
    chosen = os.environ.get(variable)
    return any(shutil.which(name) for name in ([chosen] if chosen else usual))


def _has_python_headers() -> bool:
    schemes = (sysconfig.get_default_scheme(), "posix_prefix")  # Debian's scheme names a folder without headers
    return any(Path(sysconfig.get_path("include", scheme), "Python.h").is_file() for scheme in schemes)


_PYTHON_HEADERS = Condition(_has_python_headers, "Python.h is missing", "install Python's headers (python3-dev)")


def nodes_granted() -> int:
    """Number of usable nodes of the Slurm or PBS job that this process is in; 1 outside of a job."""
    names, fault = _nodes()
    return 1 if fault else max(1, len(names))


@cache
def _nodes() -> tuple[list[str], str]:
    """Node names of the job, and why they are unusable ("" if they are usable), e.g. variables set outside of a job."""
    try:
        names = hosts.of_job(os.environ)
    except ValueError as error:
        return [], f"SLURM_JOB_NODELIST: {error}"
    for name in names if len(names) > 1 else ():
        try:
            hosts.address_towards(name)
        except OSError:
            return names, f"{name}, a node of this job by its variables, has no address here"
    return names, ""


def _several_nodes(count: int) -> tuple[Condition, ...]:
    """Conditions of "nodes:<count>": usable node names, then enough nodes."""
    have, fault = nodes_granted(), _nodes()[1]
    reason = f"{have} node{'' if have == 1 else 's'}"
    fix = f"run on a cluster, by `--profile slurm`, whose jobs may have {count} nodes (cluster.max_nodes)"
    inside = "run where the nodes' names are known, or unset SLURM_JOB_ID and SLURM_JOB_NODELIST"
    return (
        Condition(lambda: not fault, fault, inside),
        Condition(lambda: have >= count, reason, fix, status="skipped"),
    )


@cache
def _loopback_error() -> int:
    """Error that keeps ranks on one machine from connecting: EADDRNOTAVAIL (no address), ENETDOWN; 0 if none."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server, contextlib.suppress(OSError):
            socket.create_connection(server.getsockname(), timeout=5.0).close()
            return 0
    except OSError as error:
        return errno.EADDRNOTAVAIL if error.errno == errno.EADDRNOTAVAIL else 0
    return errno.ENETDOWN


CAPABILITIES: dict[str, tuple[Condition, ...]] = {
    "cuda": _CUDA,
    "bf16": _of_ampere("bf16"),
    "tf32": _of_ampere("TF32"),
    "triton": (_package("triton", "install triton (CUDA builds of torch bring it)"),),
    # torch.compile on a CPU.
    "compiler": (
        Condition(
            lambda: _has_compiler("CXX", "clang++" if sys.platform == "darwin" else "g++"),
            "no C++ compiler",
            "install g++, or name a compiler in CXX",
        ),
        _PYTHON_HEADERS,
    ),
    # Launching Triton kernels.
    "c_compiler": (
        Condition(
            lambda: _has_compiler("CC", "gcc", "clang"), "no C compiler", "install gcc, or name a compiler in CC"
        ),
        _PYTHON_HEADERS,
    ),
    "nsys": (
        Condition(
            lambda: find_tool("nsys") is not None,
            "nsys (Nsight Systems) is missing",
            "install Nsight Systems; put nsys on PATH or name it in the config, as tools.nsys",
        ),
    ),
    "hdf5": (_package("h5py"),),
    # Starting ranks on one machine.
    "loopback": (
        Condition(
            lambda: _loopback_error() != errno.ENETDOWN,
            "the loopback interface is down (ip link set lo up)",
            "ip link set lo up, as root",
        ),
        Condition(
            lambda: _loopback_error() != errno.EADDRNOTAVAIL,
            f"the loopback interface has no address {LOOPBACK} (ip addr add {LOOPBACK}/8 dev lo)",
            f"ip addr add {LOOPBACK}/8 dev lo, as root",
        ),
    ),
    # The FSDP workshop's Trainer, its model wrapper and tokenizer, and packages that it checks for.
    "transformers": (
        *map(_not_hidden, ("transformers", "accelerate", "tokenizers", "datasets")),
        *map(_package, ("transformers", "accelerate", "tokenizers")),
    ),
    "posix_fadvise": (
        Condition(
            lambda: hasattr(os, "posix_fadvise"),
            "this system cannot drop the page cache (no posix_fadvise)",
            "run on Linux",
        ),
    ),
    "srun_mpi": (
        Condition(
            launchers.srun_starts_mpi,
            "srun starts no MPI here: each task is a world of its own",
            "where `srun --mpi=list` names pmix: cluster.environment: {SLURM_MPI_TYPE: pmix}",
        ),
    ),
}


# Capabilities that making a cell's data sets needs, too.
PACKAGES = frozenset({"transformers"})

_SEVERAL = {"cuda": _several_gpus, "nodes": _several_nodes}


def gpus_needed(requires: Iterable[str]) -> int:
    """Number of GPUs that a cell with these capabilities uses: 4 for "cuda:4", 1 for "cuda"."""
    return max((int(name.partition(":")[2] or 1) for name in requires if name.split(":")[0] == "cuda"), default=0)


def nodes_needed(requires: Iterable[str]) -> int:
    """Number of nodes that a cell with these capabilities uses: 2 for "nodes:2"."""
    return max((int(name.partition(":")[2]) for name in requires if name.startswith("nodes:")), default=1)


def unmet(requires: Iterable[str]) -> list[Condition]:
    """Conditions of these capabilities that this machine does not meet, without duplicates, the decisive one first.

    Skips names beginning with "preflight:", which gate.py tests.
    Raises ValueError for a name that is neither in CAPABILITIES nor "cuda:<GPUs>" nor "nodes:<nodes>".
    """
    conditions: dict[Condition, None] = {}
    for name in requires:
        if name.startswith("preflight:"):
            continue
        several = re.fullmatch(r"(cuda|nodes):([1-9]\d*)", name)
        if not several and name not in CAPABILITIES:
            known = ", ".join(CAPABILITIES)
            raise ValueError(f"unknown capability {name!r}, expected cuda:<GPUs>, nodes:<nodes> or one of: {known}")
        conditions.update(dict.fromkeys(_SEVERAL[several[1]](int(several[2])) if several else CAPABILITIES[name]))
    return [condition for condition in conditions if not condition.met()]


class Shortfall(NamedTuple):
    """Why a cell cannot start. kind: one of base.error_kinds."""

    status: str
    reason: str
    kind: str


def shortfall(requires: Iterable[str]) -> Shortfall | None:
    """Return why this machine cannot run a cell; None if it can."""
    lacking = next(iter(unmet(requires)), None)
    if lacking is None:
        return None
    kind = error_kinds.TOO_FEW if lacking.status == "skipped" else error_kinds.UNSUPPORTED
    return Shortfall(lacking.status, lacking.reason, kind)


def missing(requires: Iterable[str]) -> str | None:
    """Reason why this machine cannot run a cell, e.g. "no CUDA device"; None if it can."""
    lacking = shortfall(requires)
    return lacking.reason if lacking else None
