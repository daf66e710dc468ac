"""Identity, provenance and capabilities of this machine.

Nothing here imports torch or starts a CUDA context, so that login nodes, parsers and parent processes can call it.
Every probe returns None (or an empty list) if the machine gives no answer.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import psutil

from perfscribe.base import files
from perfscribe.distributed import binding, hosts, launchers
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.instruments.tools import find_tool

MIB = 2**20
SLICE = "MIG-"  # prefix of the UUID of a GPU slice
ROOT = Path(__file__).resolve().parents[2]

# Variables that affect measurements. PYTORCH_ and TORCHINDUCTOR_ settings count like TORCH_ ones.
VARIABLES = re.compile(
    r"(NCCL|CUDA|CUBLAS(LT)?|CUDNN|NVIDIA_TF32|(PY)?TORCH[A-Z]*|TRITON|GLOO|G?OMP|MKL|KMP|ATEN|DNNL|ONEDNN|MALLOC"
    r"|ACCELERATE)_|(LD_PRELOAD|GLIBC_TUNABLES|PYTHON(MALLOC|DEVMODE|TRACEMALLOC))$"
)
# Variables that make git use another repository; its configuration, such as safe.directory, may come from variables.
_OF_A_REPOSITORY = re.compile(r"GIT_(?!CONFIG|TEST_|TRACE)")


# --- GPUs through NVML ------------------------------------------------------------------------------------------


@cache
def open_nvml() -> Any | None:
    """Return the initialised module pynvml, or None without package, driver or GPU. Stays open until exit."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # also a library whose version differs from the driver's, which is no NVMLError
        return None
    return pynvml


def ask(function: str, *arguments: Any) -> Any | None:
    """Call an NVML function; None if NVML, or this driver, GPU or pynvml version, does not offer it."""
    nvml: Any = open_nvml()
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        answer = call(*arguments)
    except nvml.NVMLError:
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def all_gpus() -> list[Any]:
    """NVML handles in PCI order. Devices that the job may not open are left out, although NVML counts them."""
    handles = (ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0))
    return [handle for handle in handles if handle is not None]


def visible_gpus() -> list[Any]:
    """NVML handles of the devices in CUDA_VISIBLE_DEVICES, in its order.

    As in CUDA, an entry that names no device, or in another form than the first, hides itself and all later ones; a
    duplicate hides all. With MIG, a process sees only one slice, the first, and no whole GPUs (NVIDIA's MIG user guide,
    "CUDA device enumeration"). Indices count in PCI order; CUDA's default order (fastest first) is the same if all GPUs
    of a machine are of one model.
    """
    handles = all_gpus()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        chosen = [part for gpu in handles for part in _parts(gpu)[:1]]
    else:
        entries = [entry.strip() for entry in named.split(",")]
        alike = itertools.takewhile(lambda entry: entry.isdecimal() == entries[0].isdecimal(), entries)
        found = itertools.takewhile(bool, (_named(handles, entry) for entry in alike))
        chosen = list(itertools.chain.from_iterable(found))
        if len(set(map(_uuid, chosen))) < len(chosen):
            return []
    slices = [gpu for gpu in chosen if _uuid(gpu).startswith(SLICE)]
    return slices[:1] or chosen


def _uuid(gpu: Any) -> str:
    return str(ask("nvmlDeviceGetUUID", gpu) or id(gpu))


def _parts(gpu: Any) -> list[Any]:
    """Devices that CUDA can use of a GPU: itself or, in MIG mode, its slices, possibly none."""
    if not (ask("nvmlDeviceGetMigMode", gpu) or [0])[0]:
        return [gpu]
    slots = range(ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
    slices = (ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot) for slot in slots)
    return [found for found in slices if found is not None]


def gpus_by_uuid() -> tuple[list[Any], list[str]]:
    """Handles and UUIDs of the visible GPUs; empty unless NVML knows the UUID of each."""
    handles = visible_gpus()
    uuids = [ask("nvmlDeviceGetUUID", handle) for handle in handles]
    return ([], []) if None in uuids else (handles, [str(uuid) for uuid in uuids])


def _named(handles: list[Any], entry: str) -> list[Any]:
    """Device that an entry of CUDA_VISIBLE_DEVICES names; for a GPU in MIG mode its first slice."""
    old_form = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry)  # GPU, GPU instance, compute instance
    if entry.isdecimal():
        gpus = handles[int(entry) :][:1]
    elif old_form:
        places = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
        slices = (part for gpu in handles if _uuid(gpu) == old_form[1] for part in _parts(gpu))
        return [one for one in slices if [str(ask(place, one)) for place in places] == [old_form[2], old_form[3]]]
    elif entry.startswith(SLICE):
        found = ask("nvmlDeviceGetHandleByUUID", entry)
        return [] if found is None else [found]
    else:
        gpus = [gpu for gpu in handles if entry.startswith("GPU-") and _uuid(gpu).startswith(entry)]
    return _parts(gpus[0])[:1] if len(gpus) == 1 else []


def _cuda_driver_version() -> str | None:
    number = ask("nvmlSystemGetCudaDriverVersion_v2")
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


# --- identity ---------------------------------------------------------------------------------------------------


def identity(libraries: Iterable[str]) -> dict[str, Any]:
    """Identity of a machine: figures of equal identities are comparable.

    libraries: import names of the top-level libraries that the measuring code imports; Python's modules and this
    package are left out, a library that is not installed has version None.
    With several GPU models all are named, with their lowest memory and power limit. Without a visible GPU the driver
    versions are None.
    """
    names = sorted(set(libraries) - set(sys.stdlib_module_names) - {"perfscribe"})
    return {
        **_gpu_identity(),
        "cpu_model": cpu_model(),
        "cpu_cores": len(binding.granted()),  # in a Slurm job fewer than the node has
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: library_version(name) for name in names},
    }


def _gpu_identity() -> dict[str, Any]:
    gpus = visible_gpus()
    models = sorted({str(ask("nvmlDeviceGetName", gpu)) for gpu in gpus})
    memories = [int(found.total) for gpu in gpus if (found := ask("nvmlDeviceGetMemoryInfo", gpu))]
    limits_mw = [found for gpu in gpus if (found := ask("nvmlDeviceGetPowerManagementLimit", gpu)) is not None]
    return {
        "gpu_model": " + ".join(models) or None,
        "gpu_count": len(gpus),
        "gpu_memory_bytes": min(memories, default=None),
        "gpu_power_limit_w": round(min(limits_mw) / 1000) if limits_mw else None,
        "driver_version": ask("nvmlSystemGetDriverVersion") if gpus else None,
        "cuda_driver_version": _cuda_driver_version() if gpus else None,
    }


def identity_id(identity: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of the identity as canonical JSON; the order of keys does not matter."""
    return hashlib.sha256(files.canonical(identity).encode()).hexdigest()[:12]


@cache
def cpu_model() -> str:
    """Processor name from the operating system, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    if "model name" not in text:  # Arm: the kernel gives numbers only, lscpu knows the names
        text = output("lscpu") or f"Model name: {output('sysctl', '-n', 'machdep.cpu.brand_string') or ''}"
    found = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.IGNORECASE | re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()


_distributions = cache(importlib.metadata.packages_distributions)


@cache
def library_version(name: str) -> str | None:
    """Version of the library imported as `name`, without importing it; None if it is not installed.

    torch's local part (2.11.0+cu130) is read from its source, because PyPI wheels omit it from their metadata.
    """
    version = ", ".join(sorted({importlib.metadata.version(one) for one in _distributions().get(name, ())})) or None
    written = _version_file(name).get("__version__") if version else None
    return written if isinstance(written, str) and written.startswith(f"{version}+") else version


@cache
def _version_file(name: str) -> Mapping[str, Any]:
    """Constants in <package>/version.py, read as text: torch states its CUDA version there."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path()
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    written = re.findall(r"""^(\w+)(?:: [^=\n]+)? = ('[^'\\\n]*'|"[^"\\\n]*"|None)$""", text, re.MULTILINE)
    return {name: ast.literal_eval(value) for name, value in written}


# --- provenance -------------------------------------------------------------------------------------------------


def provenance(root: Path) -> dict[str, Any]:
    """Facts about a measurement that are no part of a key. `root` is the checkout.

    Includes the node's name, which `scrub` removes before publishing.
    """
    commit, dirty = _commit(root)
    return {
        "commit": commit,
        "dirty": dirty,
        "node": platform.node(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gpu_clocks_mhz": _gpu_clocks_mhz(),
        "variables": {name: _as_text(os.environ[name]) for name in sorted(os.environ) if VARIABLES.match(name)},
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
    }


def _as_text(variable: str) -> str:
    """Replace bytes that are not UTF-8, which our files cannot hold."""
    return variable.encode(errors="replace").decode()


# Code, relative to the checkout: only changes here make the checkout dirty, not settings or notes.
CODE = ("Snakefile", "perfscribe", "rules", "workflow")


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether the code differs from it; without .git, from PERFSCRIBE_COMMIT or the file .commit."""
    if head := git(root, "rev-parse", "--verify", "HEAD"):
        # No optional locks, so that `status` never blocks the user's git.
        changes = git(root, "--no-optional-locks", "status", "--porcelain", "--", *CODE)
        return head, None if changes is None else bool(changes)
    told = os.environ.get("PERFSCRIBE_COMMIT", "").strip()
    if not told and (root / ".commit").is_file():
        told = (root / ".commit").read_text().strip()
    return told or None, None


def why_no_commit(root: Path) -> str:
    """One line on why records will name no commit although this is a git checkout, with a remedy; "" otherwise."""
    if not (root / ".git").exists() or _commit(root)[0]:
        return ""
    if shutil.which("git") is None:
        return "git is not installed; PERFSCRIBE_COMMIT may name the commit"
    command, env = _git(root, "rev-parse", "--verify", "HEAD")
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env).stderr
    if "safe.directory" in said:
        allow = f"git config --global --add safe.directory {shlex.quote(str(root))}"
        return f"git is silent in a checkout that another user owns: `{allow}`, or PERFSCRIBE_COMMIT names the commit"
    return f"git: {(said.strip().splitlines() or ['no answer'])[0]}; PERFSCRIBE_COMMIT may name the commit"


def _git(root: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return a git command and an environment without variables that name another repository."""
    env = {name: text for name, text in os.environ.items() if not _OF_A_REPOSITORY.match(name)}
    return ["git", "-C", str(root), *words], env


def git(root: Path, *words: str) -> str | None:
    """Output of git in the repository at root; None if root is not a repository's top or git fails."""
    if not (root / ".git").exists():  # else git would answer for an enclosing repository
        return None
    command, env = _git(root, *words)
    return output(*command, env=env)


def output(*command: str, timeout_s: float = 20.0, env: Mapping[str, str] = os.environ) -> str | None:
    """Stripped stdout of a command, in English; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True, env={**env, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def _gpu_clocks_mhz() -> list[dict[str, int | None]]:
    kinds = {"sm": ("nvmlDeviceGetClockInfo", 1), "memory": ("nvmlDeviceGetClockInfo", 2)}
    kinds["sm_max"] = ("nvmlDeviceGetMaxClockInfo", 1)  # 1 and 2: NVML_CLOCK_SM, NVML_CLOCK_MEM
    return [{name: ask(call, gpu, kind) for name, (call, kind) in kinds.items()} for gpu in visible_gpus()]


# --- processes and memory ---------------------------------------------------------------------------------------


def foreign_processes(gpus: Iterable[Any]) -> dict[int, str]:
    """Names, by pid, of compute processes on these GPUs outside this process and its descendants.

    In a container NVML may return pids of the host. One without a process here may be our own, so it is left out.
    """
    listed = [process for gpu in gpus for process in ask("nvmlDeviceGetComputeRunningProcesses", gpu) or []]
    names = {process.pid: _process_name(process.pid) for process in listed}
    own = process_tree()
    return {pid: name for pid, name in names.items() if name is not None and pid not in own}


def _process_name(pid: int) -> str | None:
    try:
        # A pid of the host may be that of a thread here, which psutil.Process takes for a process.
        name = psutil.Process(pid).name() if psutil.pid_exists(pid) else ""
    except psutil.Error:
        name = ""
    if not name:
        name = ask("nvmlSystemGetProcessName", pid) or ""
    return PurePath(name.split()[0]).name if name.split() else None


def process_tree() -> set[int]:
    """Pids of this process and all its descendants."""
    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Host memory that this process may still use: the least of free memory and the limits of cgroups and Slurm.

    root: parent of /proc and /sys (another folder in tests). A cgroup's limit also binds its descendants.
    """
    limits = [psutil.virtual_memory().available, *_cgroup_limits_bytes(root)]
    slurm = os.environ.get("SLURM_MEM_PER_NODE", "")  # MiB; 0: all of the node's memory
    if slurm.isdecimal() and int(slurm):
        limits.append(int(slurm) * MIB)
    return min(limits)


def _cgroup_limits_bytes(root: Path) -> Iterable[int]:
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            limit = folder / ("memory.limit_in_bytes" if controllers else "memory.max")
            text = limit.read_text().strip() if limit.is_file() else "max"
            if text.isdecimal():
                yield int(text)
            if folder == base:
                break


# --- capabilities -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A condition for a capability.

    reason: printed after the status if it is not met. fix: remedy in words. status: of a cell that lacks it.
    """

    met: Callable[[], bool] = field(compare=False)
    reason: str
    fix: str
    status: str = "unsupported"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _package(module: str, fix: str = "") -> Condition:
    return Condition(lambda: _installed(module), f"{module} is missing", fix or f"install {module}")


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
    build = _version_file("torch")
    if "cuda" in build:
        return build["cuda"] is not None
    return not (library_version("torch") or "+cpu").endswith("+cpu")


def _driver_fits_torch() -> bool:
    """Compare major versions: CUDA runs programs of its major version or an older one; unknown versions pass."""
    driver = _cuda_driver_version()
    built_for = _version_file("torch").get("cuda")
    return not (driver and built_for) or int(built_for.split(".")[0]) <= int(driver.split(".")[0])


def _is_ampere_or_newer() -> bool:
    """Return True if unknown, so that a machine without a GPU reports only that."""
    versions = [ask("nvmlDeviceGetCudaComputeCapability", gpu) for gpu in visible_gpus()]
    return all(version[0] >= 8 for version in versions if version)


def _has_compiler(variable: str, *usual: str) -> bool:
    """Return whether the compiler named by the variable exists or, if it is unset, any of the usual ones."""
    chosen = os.environ.get(variable)
    return any(shutil.which(name) for name in ([chosen] if chosen else usual))


def _has_python_headers() -> bool:
    schemes = (sysconfig.get_default_scheme(), "posix_prefix")  # Debian's scheme names a folder without headers
    return any(Path(sysconfig.get_path("include", scheme), "Python.h").is_file() for scheme in schemes)


_PYTHON_HEADERS = Condition(_has_python_headers, "Python.h is missing", "install Python's headers (python3-dev)")


def gpus_needed(requires: Iterable[str]) -> int:
    """Number of GPUs that a cell with these capabilities uses: 4 for "cuda:4", 1 for "cuda"."""
    return max((int(name.partition(":")[2] or 1) for name in requires if name.split(":")[0] == "cuda"), default=0)


def nodes_needed(requires: Iterable[str]) -> int:
    """Number of nodes that a cell with these capabilities uses: 2 for "nodes:2"."""
    return max((int(name.partition(":")[2]) for name in requires if name.startswith("nodes:")), default=1)


def nodes_granted() -> int:
    """Number of usable nodes of the Slurm or PBS job that this process is in; 1 outside of a job."""
    names, strange = _nodes()
    return 1 if strange else max(1, len(names))


@cache
def _nodes() -> tuple[list[str], str]:
    """Node names of the job, and why they are unusable, e.g. because variables are set outside of a job."""
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
    """Conditions of "nodes:<count>"."""
    have, strange = nodes_granted(), _nodes()[1]
    reason = f"{have} node{'' if have == 1 else 's'}"
    fix = f"run on a cluster, by `--profile slurm`, whose jobs may have {count} nodes (cluster.max_nodes)"
    inside = "run where the nodes' names are known, or unset SLURM_JOB_ID and SLURM_JOB_NODELIST"
    return (
        Condition(lambda: not strange, strange, inside),
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


def _several_gpus(count: int) -> tuple[Condition, ...]:
    """Conditions of "cuda:<count>". The reason is the number of GPUs; having none is a condition of _CUDA."""
    have = len(visible_gpus())
    reason, fix = f"{have} GPU{'' if have == 1 else 's'}", f"run on a machine with {count} GPUs"
    return (*_CUDA, Condition(lambda: have not in range(1, count), reason, fix, status="skipped"))


_CUDA = (
    Condition(lambda: _installed("pynvml"), "nvidia-ml-py is missing", "install nvidia-ml-py"),
    Condition(lambda: bool(all_gpus()), "no CUDA device", "run on a machine with an NVIDIA GPU and its driver"),
    Condition(
        lambda: any(map(_parts, all_gpus())) or not all_gpus(),
        "the GPU is in MIG mode and has no slice",
        "make a slice (nvidia-smi mig -cgi PROFILE -C)",
    ),
    Condition(
        lambda: bool(visible_gpus()) or not any(map(_parts, all_gpus())),
        "CUDA_VISIBLE_DEVICES hides every GPU",
        "unset CUDA_VISIBLE_DEVICES, or name a GPU of this machine in it, once",
    ),
    _package("torch", "install a CUDA build of torch"),
    Condition(
        lambda: not _installed("torch") or _torch_has_cuda(),
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
            lambda: _has_compiler("CC", "gcc", "clang"),
            "no C compiler",
            "install gcc, or name a compiler in CC",
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


def shortfall(requires: Iterable[str]) -> tuple[str, str] | None:
    """Status and reason of a cell that this machine cannot run; None if it can."""
    lacking = unmet(requires)
    return (lacking[0].status, lacking[0].reason) if lacking else None


def missing(requires: Iterable[str]) -> str | None:
    """Reason without the status, e.g. "no CUDA device"."""
    lacking = shortfall(requires)
    return lacking[1] if lacking else None
