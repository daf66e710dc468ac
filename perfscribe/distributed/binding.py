"""CPU binding: masks requested from a launcher, masks granted, and the cores nearest to each GPU.

Binding lists are those of Cray PALS (`mpiexec --cpu-bind list:0,1:8,9`); cores have the kernel's numbers.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Cores = tuple[int, ...]

CPU_FOLDER = Path("/sys/devices/system/cpu")
CPUSET = Path("/sys/fs/cgroup/cpuset.cpus.effective")
NEAR, FAR, PARTLY = "near", "anti-affine", "partly near"
_OPTION = re.compile(r"(?:--cpu-bind[= ])?(?:(?:verbose|quiet|v|q),)?(list|map_cpu|mask_cpu):(\S+)")
MOST_CORES = 4096


def parse_cpu_bind(text: str) -> list[Cores]:
    """Return the cores of each local rank from the option's text.

    Accepts PALS's list ("list:0,1:8-9", ranks separated by colons) and Slurm's map_cpu ("map_cpu:0,8") and mask_cpu
    ("mask_cpu:0x3,0x300"), optionally preceded by "verbose," and "--cpu-bind". Raises ValueError for anything else.
    """
    found = _OPTION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"cpu-bind {text!r}: expected list:…, map_cpu:… or mask_cpu:…")
    kind, body = found.groups()
    parts = body.split(":" if kind == "list" else ",")
    cores = [cores_of_mask(part) if kind == "mask_cpu" else _cores(part, text) for part in parts]
    if not all(cores):
        raise ValueError(f"cpu-bind {text!r}: a rank without cores")
    return cores


def _cores(part: str, text: str) -> Cores:
    cores: set[int] = set()
    for piece in part.split(","):
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", piece)
        if found is None or not int(found[1]) <= int(found[2] or found[1]) < MOST_CORES:
            raise ValueError(f"cpu-bind {text!r}: {piece!r} is no core and no range of cores")
        cores |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cores))


def mask(cores: Iterable[int]) -> str:
    """Return the affinity mask as launchers print it: 0x300 for cores 8 and 9."""
    return hex(sum(1 << core for core in set(cores)))


def cores_of_mask(text: str) -> Cores:
    """Return the cores of a mask, the inverse of mask(); raises ValueError if it is not hexadecimal."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,1024}", text):
        raise ValueError(f"mask {text!r}: expected a number such as 0x300")
    number = int(text, 16)
    return tuple(core for core in range(number.bit_length()) if number >> core & 1)


def shown(cores: Iterable[int]) -> str:
    """Return cores in short form: "0-3,8"; "none" for none."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "none"


def as_list(bindings: Sequence[Iterable[int]]) -> str:
    """Return the binding of each rank as PALS's list."""
    return "list:" + ":".join(",".join(map(str, cores)) for cores in bindings)


def granted() -> Cores:
    """Return the cores that this process may run on; all of them if the system does not report affinity."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def even(cores: Sequence[int], ranks: int) -> list[Cores]:
    """Divide the cores among ranks in blocks as equal as possible; ranks share cores if there are fewer cores."""
    if len(cores) < ranks:
        return [(cores[rank * len(cores) // ranks],) for rank in range(ranks)]
    return [tuple(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) for rank in range(ranks)]


def nearness(cores: Iterable[int], nearest: Iterable[int]) -> str:
    """Return whether a rank's cores are among those nearest to its GPU: all (near), none (anti-affine), or some."""
    cores, nearest = set(cores), set(nearest)
    inside = cores & nearest
    return NEAR if inside == cores else PARTLY if inside else FAR


def gpu_cores() -> list[Cores]:
    """Return the nearest cores of each GPU in CUDA_VISIBLE_DEVICES, by NVML; empty if NVML cannot be queried.

    Does not initialise CUDA, which numbers identical GPUs as NVML does.
    """
    try:
        # Imported by a computed name, so that no fingerprint includes its version.
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        named = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(pynvml.nvmlDeviceGetCount()))))
        return [_affinity(pynvml, _gpu(pynvml, entry.strip())) for entry in named.split(",") if entry.strip()]
    except Exception:  # no package, no driver, a MIG device
        return []


def _gpu(nvml: Any, entry: str) -> Any:
    by_number = entry.isdecimal()
    return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if by_number else nvml.nvmlDeviceGetHandleByUUID(entry)


def _affinity(nvml: Any, gpu: Any) -> Cores:
    words = nvml.nvmlDeviceGetCpuAffinity(gpu, MOST_CORES // 64)
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)


def logical_numbers(folder: Path = CPU_FOLDER, allowed: Path = CPUSET) -> dict[int, int]:
    """Return hwloc's number of each hardware thread by the kernel's: its place in the tree of package, cache and core.

    Open MPI's rankfiles use these numbers, over what the control group allows (a container's share of the machine), not
    over this process's affinity. Empty if the kernel does not report the topology.
    """
    keys = {}
    for entry in folder.glob("cpu[0-9]*"):
        siblings = [entry / name for name in ("topology/package_cpus_list", "cache/index3/shared_cpu_list")]
        siblings += [entry / "topology/core_cpus_list", entry / "topology/thread_siblings_list"]
        number = int(entry.name.removeprefix("cpu"))
        if (entry / "topology").is_dir():  # missing if the CPU is offline
            keys[number] = (*map(_first_core, siblings), number)
    text = allowed.read_text().strip() if allowed.is_file() else ""
    inside = set(_cores(text, "list")) & set(keys) if text else set(keys)
    return {number: place for place, number in enumerate(sorted(inside, key=lambda number: keys[number]))}


def _first_core(path: Path) -> int:
    found = re.match(r"\d+", path.read_text()) if path.is_file() else None
    return int(found[0]) if found else -1


def rankfile(bindings: Sequence[Iterable[int]], host: str = "localhost") -> str:
    """Return Open MPI's rankfile that binds each rank to its cores, which are numbered as hardware threads.

    Uses ranges, because Open MPI 4 crashes on a slot list of more than 64 characters.
    """
    logical = logical_numbers()
    slots = (shown(logical.get(core, core) for core in cores) for cores in bindings)
    return "".join(f"rank {rank}={host} slot={slot}\n" for rank, slot in enumerate(slots))


if __name__ == "__main__":  # a rank bound by a launcher: writes its mask into the folder
    from perfscribe.distributed import ranks

    Path(sys.argv[1], str(ranks.find(os.environ).rank)).write_text(mask(granted()))
