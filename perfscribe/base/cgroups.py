"""Limits that Linux's control groups set for this process."""

from collections.abc import Iterator
from pathlib import Path


def limits(controller: str, file: str, file_v1: str, root: Path = Path("/")) -> Iterator[str]:
    """Yield the text of a control file in this process's group, then in each group above, whose limits bind it, too.

    file, file_v1: its name in version 2 and in version 1 of control groups. root: parent of /proc and /sys (another
    folder in tests).
    """
    cgroup_file = root / "proc/self/cgroup"
    for line in cgroup_file.read_text().splitlines() if cgroup_file.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            limit = folder / (file_v1 if controllers else file)
            if limit.is_file():
                yield limit.read_text().strip()
            if folder == base:
                break
