"""Sets of CPU cores, in the kernel's numbers: as lists, as masks, divided among ranks."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

Cores = tuple[int, ...]

CPU_FOLDER = Path("/sys/devices/system/cpu")
MOST_CORES = 4096


def granted() -> Cores:
    """Cores that this process may run on; all of them if the system does not report affinity."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def parse(text: str) -> Cores:
    """Cores of a list such as "0-3,8"; raises ValueError for anything else."""
    cores: set[int] = set()
    for piece in text.split(","):
        ends = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", piece)
        if ends is None or not int(ends[1]) <= int(ends[2] or ends[1]) < MOST_CORES:
            raise ValueError(f"{piece!r} is no core and no range of cores")
        cores |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(sorted(cores))


def shown(cores: Iterable[int]) -> str:
    """Cores in short form, the inverse of parse(): "0-3,8"; "none" for none."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "none"


def mask(cores: Iterable[int]) -> str:
    """Affinity mask as launchers print it: 0x300 for cores 8 and 9."""
    return hex(sum(1 << core for core in set(cores)))


def cores_of_mask(text: str) -> Cores:
    """Cores of a mask, the inverse of mask(); raises ValueError if it is not hexadecimal."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,1024}", text):
        raise ValueError(f"mask {text!r}: expected a number such as 0x300")
    number = int(text, 16)
    return tuple(core for core in range(number.bit_length()) if number >> core & 1)


def even(cores: Sequence[int], ranks: int) -> list[Cores]:
    """Divide the cores among ranks in blocks as equal as possible; ranks share cores if there are fewer cores."""
    if len(cores) < ranks:
        return [(cores[rank * len(cores) // ranks],) for rank in range(ranks)]
    return [tuple(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) for rank in range(ranks)]
