"""Your code in the tables: the functions of a course's adapter file, where they are and how they are called.

A subject is a checkout of CS336's assignment 2 with its own tests/adapters.py. Its code runs in the child and its ranks
alone. A kernel is what one problem of the handout asks for; adapters of it have the names of spring 2025 or 2026.
"""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# By process and rank: paths of adapter files by the subject's name, as JSON. No record has them.
VARIABLE = "PERFSCRIBE_SUBJECTS"
# The name of the config's single subject, whose rows are handed in.
YOURS = "yours"
FLASH = {"cpu": "flash_pytorch", "cuda": "flash_triton"}
INDIVIDUAL, BUCKETED, OPTIMIZER = "ddp_individual", "ddp_bucketed", "sharded_optimizer"
# The adapters of each kernel, each by its names; those that it cannot do without first.
KERNELS = {
    "flash_pytorch": (("get_flashattention_autograd_function_pytorch",),),
    "flash_triton": (("get_flashattention_autograd_function_triton",),),
    INDIVIDUAL: (
        ("get_ddp_individual_parameters", "get_ddp"),
        ("ddp_individual_parameters_on_after_backward", "ddp_on_after_backward"),
    ),
    BUCKETED: (("get_ddp_bucketed",), ("ddp_bucketed_on_after_backward",), ("ddp_bucketed_on_train_batch_start",)),
    OPTIMIZER: (("get_sharded_optimizer",),),
}
REQUIRED = 2


def checkout(adapters: Path) -> Path:
    """The folder that the file's absolute imports begin at: the nearest with a pyproject.toml or a .git."""
    for folder in adapters.parents:
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return adapters.parents[1] if adapters.parent.name == "tests" else adapters.parent


def project(folder: Path) -> dict[str, Any]:
    """Its pyproject.toml; empty where there is none, or it cannot be read."""
    try:
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def roots(adapters: Path) -> list[Path]:
    """Folders of the subject's modules: its checkout and those that its pyproject.toml names.

    Such are paths of [tool.uv.sources] and members of [tool.uv.workspace], with their src/; then cs336-basics/.
    """
    top = checkout(adapters)
    found: list[Path] = []
    waiting = [top]
    while waiting:
        folder = waiting.pop(0)
        if folder in found or not folder.is_dir():
            continue
        found.append(folder)
        waiting += _sources(folder)
        if folder == top:
            waiting.append(top / "cs336-basics")
    return [one for folder in found for one in (folder, folder / "src") if one.is_dir()]


def has_module(adapters: Path, top: str) -> bool:
    """Whether the subject has a module or package of this name, such as cs336_systems."""
    return any((root / top).is_dir() or (root / f"{top}.py").is_file() for root in roots(adapters))


def remedy(packages: Sequence[str]) -> str:
    """One line for packages that are missing: the command, or the folder that a project of the course is in."""
    course = [one for one in packages if one.startswith("cs336")]
    others = [one for one in packages if one not in course]
    lines = [f"{one} is not in the checkout: [tool.uv.sources] of pyproject.toml says where it is" for one in course]
    if others:
        python = ".venv/bin/python" if Path(sys.prefix).name == ".venv" else "python"
        are = "is" if len(others) == 1 else "are"
        lines.append(f"{', '.join(others)} {are} missing here: {python} -m pip install {' '.join(others)}")
    return "; ".join(lines)


def _sources(folder: Path) -> list[Path]:
    """The folders that its pyproject.toml names, whatever else stands there."""
    uv = _table(_table(project(folder), "tool"), "uv")
    found = []
    for source in _table(uv, "sources").values():
        for one in source if isinstance(source, list) else [source]:
            if isinstance(one, dict) and isinstance(path := one.get("path"), str):
                found.append((folder / Path(path).expanduser()).resolve())
    members = _table(uv, "workspace").get("members", [])
    for pattern in members if isinstance(members, list) else []:
        with contextlib.suppress(ValueError, NotImplementedError):  # no pattern, or an absolute one
            found += sorted(path.resolve() for path in folder.glob(str(pattern)))
    return found


def _table(of: Any, name: str) -> dict[str, Any]:
    found = of.get(name) if isinstance(of, dict) else None
    return found if isinstance(found, dict) else {}


def module_name(adapters: Path) -> str:
    """The dotted name of the adapter file, so that its relative imports work."""
    return ".".join(adapters.relative_to(checkout(adapters)).with_suffix("").parts)
