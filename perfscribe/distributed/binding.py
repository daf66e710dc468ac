"""CPU binding: texts that tell launchers the cores of each rank, and the cores nearest to each GPU.

Lists of bindings are in Cray PALS's form (`mpiexec --cpu-bind list:0,1:8,9`: ranks separated by colons). As a program,
`python -m perfscribe.distributed.binding FOLDER` on a rank writes its affinity mask, such as 0x300, to FOLDER/<rank>.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfscribe.base import cgroups
from perfscribe.base.cpu_sets import CPU_FOLDER, Cores, cores_of_mask, granted, mask, parse, shown
from perfscribe.instruments import nvml

NEAR, FAR, PARTLY = "near", "anti-affine", "partly near"
_OPTION = re.compile(r"(?:--cpu-bind[= ])?(?:(?:verbose|quiet|v|q),)?(list|map_cpu|mask_cpu):(\S+)")


def parse_cpu_bind(text: str) -> list[Cores]:
    """Return the cores of each local rank from the option's text.

    Accepts PALS's list ("list:0,1:8-9", ranks separated by colons) and Slurm's map_cpu ("map_cpu:0,8") and mask_cpu
    ("mask_cpu:0x3,0x300"), optionally preceded by "verbose," and "--cpu-bind". Raises ValueError for anything else.
    """
    option = _OPTION.fullmatch(text.strip())
    if option is None:
        raise ValueError(f"cpu-bind {text!r}: expected list:…, map_cpu:… or mask_cpu:…")
    kind, body = option.groups()
    parts = body.split(":" if kind == "list" else ",")
    try:
        cores = [cores_of_mask(part) if kind == "mask_cpu" else parse(part) for part in parts]
    except ValueError as error:
        raise ValueError(f"cpu-bind {text!r}: {error}") from None
    if not all(cores):
        raise ValueError(f"cpu-bind {text!r}: a rank without cores")
    return cores


def as_list(bindings: Sequence[Iterable[int]]) -> str:
    """Return the binding of each rank as PALS's list."""
    return "list:" + ":".join(",".join(map(str, cores)) for cores in bindings)


def nearness(cores: Iterable[int], nearest: Iterable[int]) -> str:
    """Return whether a rank's cores are among those nearest to its GPU: all (near), none (anti-affine), or some."""
    cores, nearest = set(cores), set(nearest)
    inside = cores & nearest
    return NEAR if inside == cores else PARTLY if inside else FAR


def gpu_cores() -> list[Cores]:
    """Return the nearest cores of each GPU in CUDA_VISIBLE_DEVICES; empty unless NVML knows those of all."""
    cores = [nvml.nearest_cores(gpu) for gpu in nvml.visible_gpus()]
    return cores if all(cores) else []


def logical_numbers(root: Path = Path("/")) -> dict[int, int]:
    """Return hwloc's logical number of each hardware thread, by the kernel's number.

    hwloc's is the thread's place, from 0, in the tree of package, L3 cache and core. Open MPI's rankfiles use these
    numbers, over the cores of this process's control group (a container's or a job's share of the machine), not over
    its affinity. Offline cores are left out. Empty if the kernel does not report the topology.
    root: parent of /proc and /sys (another folder in tests).
    """
    keys = {}
    for entry in (root / CPU_FOLDER.relative_to("/")).glob("cpu[0-9]*"):
        siblings = [entry / name for name in ("topology/package_cpus_list", "cache/index3/shared_cpu_list")]
        siblings += [entry / "topology/core_cpus_list", entry / "topology/thread_siblings_list"]
        number = int(entry.name.removeprefix("cpu"))
        if (entry / "topology").is_dir():  # missing if the CPU is offline
            keys[number] = (*map(_first_core, siblings), number)
    allowed = next(filter(None, cgroups.limits("cpuset", "cpuset.cpus.effective", "cpuset.cpus", root)), "")
    inside = set(parse(allowed)) & set(keys) if allowed else set(keys)
    return {number: place for place, number in enumerate(sorted(inside, key=lambda number: keys[number]))}


def _first_core(path: Path) -> int:
    digits = re.match(r"\d+", path.read_text()) if path.is_file() else None
    return int(digits[0]) if digits else -1


def rankfile(bindings: Sequence[Iterable[int]], host: str = "localhost") -> str:
    """Return the text of an Open MPI rankfile that binds each rank to its cores: lines "rank 0=localhost slot=0-1".

    bindings: each rank's cores in the kernel's numbers; slots are hwloc's (logical_numbers), or the kernel's where that
    has none. Slots are hardware threads, for which Open MPI needs --use-hwthread-cpus (4) or the modifier hwtcpus (5).
    Uses ranges, because Open MPI 4 crashes on a slot list of more than 64 characters.
    """
    logical = logical_numbers()
    slots = (shown(logical.get(core, core) for core in cores) for cores in bindings)
    return "".join(f"rank {rank}={host} slot={slot}\n" for rank, slot in enumerate(slots))


if __name__ == "__main__":  # a rank bound by a launcher: writes its mask into the folder
    from perfscribe.distributed import ranks

    Path(sys.argv[1], str(ranks.find(os.environ).rank)).write_text(mask(granted()))
