"""The experiments: a folder each below experiments/, found by the files that it holds."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[1] / "experiments"


def names(file: str) -> list[str]:
    """Experiments that have this file, by name."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{file}"))


def module(experiment: str, part: str) -> ModuleType:
    """Its module levels, measure or present."""
    return importlib.import_module(f"perfscribe.experiments.{experiment}.{part}")


@cache
def levels() -> dict[str, Any]:
    """The declared section of the config of each experiment that has one."""
    return {name: module(name, "levels").LEVELS for name in names("levels.py")}
