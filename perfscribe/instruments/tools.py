"""Finds external programs needed for measuring. Measuring code imports this module, so it must stay small."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The config's section `tools` as environment variables, so that all child processes see it.
NSYS_VARIABLE = "PERFSCRIBE_NSYS"
NSYS_LIBRARIES_VARIABLE = "PERFSCRIBE_NSYS_LIBRARIES"
_CONFIGURED = {"nsys": NSYS_VARIABLE}

# Folders searched if PATH does not contain the tools; NVIDIA's installers and container images use them.
TOOL_FOLDERS = {
    "nsys": (
        "opt/nvidia/nsight-systems/*/bin",
        "opt/nvidia/nsight-systems/*/target-linux-*",
        "usr/local/cuda*/bin",
        "usr/local/cuda*/nsight-systems-*/bin",
        "opt/nvidia/nsight-compute/*/host/target-linux-*",
    ),
    "ncu": ("opt/nvidia/nsight-compute/*", "usr/local/cuda*/bin", "usr/local/cuda*/nsight-compute-*"),
    "nvcc": ("usr/local/cuda*/bin",),
}


def use(section: Mapping[str, Any], root: Path) -> None:
    """Let this process and its children find the tools of the config's section `tools`.

    Relative paths begin at `root`. Keys that the section leaves open do not change the variables.
    """
    for name, variable in (("nsys", NSYS_VARIABLE), ("nsys_libraries", NSYS_LIBRARIES_VARIABLE)):
        if section.get(name):
            os.environ[variable] = str(root / section[name])


def find_tool(name: str, root: Path = Path("/")) -> Path | None:
    """Return a program's path: as configured, else on PATH, below CUDA_HOME, in the newest of NVIDIA's usual folders.

    The folders are searched below `root`. If a configured path is not a program, the result is None.
    """
    configured = os.environ.get(_CONFIGURED.get(name, ""))
    if configured:
        return Path(configured) if _is_program(Path(configured)) else None
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    homes = [os.environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    candidates = [Path(home, "bin", name) for home in homes] if name in TOOL_FOLDERS else []
    for pattern in TOOL_FOLDERS.get(name, ()):
        candidates += sorted(root.glob(f"{pattern}/{name}"), key=_version_key, reverse=True)
    return next((path for path in candidates if _is_program(path)), None)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _version_key(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
