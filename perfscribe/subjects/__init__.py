"""Your code in the tables: the functions of a course's adapter file, where they are and how they are called.

A subject is a checkout of CS336's assignment 2 with its tests/adapters.py. Only measuring child processes and ranks run
its code. A kernel is the code for one problem of the handout; adapters have the names of spring 2025 or 2026.
"""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Environment variable for every process and rank: JSON of adapter files by subject name; not recorded.
VARIABLE = "PERFSCRIBE_SUBJECTS"
# Name of the config's single subject; only its rows are handed in.
YOURS = "yours"
FLASH = {"cpu": "flash_pytorch", "cuda": "flash_triton"}
INDIVIDUAL, BUCKETED, OPTIMIZER, FSDP = "ddp_individual", "ddp_bucketed", "sharded_optimizer", "fsdp"
# Adapters of each kernel, each with its alternative names.
KERNELS = {
    "flash_pytorch": (("get_flashattention_autograd_function_pytorch",),),
    "flash_triton": (("get_flashattention_autograd_function_triton",),),
    INDIVIDUAL: (
        ("get_ddp_individual_parameters", "get_ddp"),
        ("ddp_individual_parameters_on_after_backward", "ddp_on_after_backward"),
    ),
    BUCKETED: (("get_ddp_bucketed",), ("ddp_bucketed_on_after_backward",), ("ddp_bucketed_on_train_batch_start",)),
    OPTIMIZER: (("get_sharded_optimizer",),),
    FSDP: (("get_fsdp",), ("fsdp_on_after_backward",), ("fsdp_gather_full_params",)),
}
OPTIONAL = "ddp_bucketed_on_train_batch_start"


@dataclass(frozen=True)
class Subject:
    """Factors of a cell that runs a subject's code."""

    subject: str
    kernel: str


def checkout(adapters: Path) -> Path:
    """Folder at which the file's absolute imports begin: the nearest parent with a pyproject.toml or a .git."""
    for folder in adapters.parents:
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return adapters.parents[1] if adapters.parent.name == "tests" else adapters.parent


def project(folder: Path) -> dict[str, Any]:
    """The folder's pyproject.toml; empty if missing or unreadable."""
    try:
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def roots(adapters: Path) -> list[Path]:
    """Import roots of the subject: its checkout and the folders that its pyproject.toml names, each with its src/.

    These are paths of [tool.uv.sources] and members of [tool.uv.workspace]; then cs336-basics/.
    """
    top = checkout(adapters)
    folders: list[Path] = []
    waiting = [top]
    while waiting:
        folder = waiting.pop(0)
        if folder in folders or not folder.is_dir():
            continue
        folders.append(folder)
        waiting += _sources(folder)
        if folder == top:
            waiting.append(top / "cs336-basics")
    return [path for folder in folders for path in (folder, folder / "src") if path.is_dir()]


def has_module(adapters: Path, top: str) -> bool:
    """Return whether the subject has a module or package of this name, such as cs336_systems."""
    return any((root / top).is_dir() or (root / f"{top}.py").is_file() for root in roots(adapters))


def remedy(packages: Sequence[str]) -> str:
    """Return one line on installing missing packages; for a course package, where its project should be configured."""
    course = [package for package in packages if package.startswith("cs336")]
    others = [package for package in packages if package not in course]
    lines = [f"{name} is not in the checkout: [tool.uv.sources] of pyproject.toml says where it is" for name in course]
    if others:
        python = ".venv/bin/python" if Path(sys.prefix).name == ".venv" else "python"
        are = "is" if len(others) == 1 else "are"
        lines.append(f"{', '.join(others)} {are} missing here: {python} -m pip install {' '.join(others)}")
    return "; ".join(lines)


def _sources(folder: Path) -> list[Path]:
    """Folders that pyproject.toml names; entries of unexpected types are ignored."""
    uv = _table(_table(project(folder), "tool"), "uv")
    folders = []
    for source in _table(uv, "sources").values():
        for entry in source if isinstance(source, list) else [source]:
            if isinstance(entry, dict) and isinstance(path := entry.get("path"), str):
                folders.append((folder / Path(path).expanduser()).resolve())
    members = _table(uv, "workspace").get("members", [])
    for pattern in members if isinstance(members, list) else []:
        with contextlib.suppress(ValueError, NotImplementedError):  # not a pattern, or an absolute one
            folders += sorted(path.resolve() for path in folder.glob(str(pattern)))
    return folders


def _table(table: Any, name: str) -> dict[str, Any]:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, dict) else {}


def module_name(adapters: Path) -> str:
    """Dotted name of the adapter file, so that its relative imports work."""
    return ".".join(adapters.relative_to(checkout(adapters)).with_suffix("").parts)
