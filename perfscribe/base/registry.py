"""The experiments: a folder each in their course's below experiments/, found by the files that it holds."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = "subjects"  # shows the cells of a user's own code, where the config names any
CHAPTERS = ("cs336", "polaris", "fsdp")


@dataclass(frozen=True)
class Shown:
    """Ids of the tables and figures that an experiment makes.

    reads: experiments whose records it is made of, as far as a run has them, beside its own where it measures.
    references: published figures that it shows, by file, beside its own and theirs.
    """

    tables: tuple[str, ...]
    figures: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("no tables")
        for name in (*self.tables, *self.figures):
            if name.partition(".")[0] not in CHAPTERS:
                raise ValueError(f"{name}: expected an id that begins with one of {', '.join(CHAPTERS)}, and a dot")


def _holding(file: str) -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "perfscribe" / "experiments").glob(f"*/*/{file}"))


def known() -> list[str]:
    """Names of the experiments that show something."""
    return _holding("show.py")


def measured() -> list[str]:
    """Those that measure too; the others show what these have measured."""
    return _holding("measure.py")


def module_name(experiment: str, part: str, root: Path = ROOT) -> str:
    """Dotted name of its module levels, measure, show or subject, whether it is there or not."""
    folders = (root / "perfscribe" / "experiments").glob(f"*/{experiment}")
    return f"perfscribe.experiments.{next((one.parent.name for one in folders), 'unknown')}.{experiment}.{part}"


def module(experiment: str, part: str) -> ModuleType:
    """Its module levels, measure, show or subject."""
    return importlib.import_module(module_name(experiment, part))


@cache
def levels() -> dict[str, Any]:
    """The declared section of the config of each experiment that measures."""
    return {name: module(name, "levels").LEVELS for name in measured()}


def shown(experiment: str) -> Shown:
    """What it declares to show."""
    found: Shown = module(experiment, "levels").SHOWN
    return found
