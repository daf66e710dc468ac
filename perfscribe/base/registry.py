"""Finds the experiments: folders experiments/COURSE/NAME, recognised by the files in them."""

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = "subjects"  # shows the cells of a user's own code, if the config names any
CHAPTERS = ("cs336", "polaris", "fsdp")


@dataclass(frozen=True)
class Shown:
    """Ids of the tables and figures that an experiment produces.

    reads: further experiments whose records it uses, as far as a run has them.
    references: files of further published figures that it shows; its own and those of `reads` need no entry.
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
    """Return the names of the experiments that show something."""
    return _holding("show.py")


def measured() -> list[str]:
    """Return the names of the experiments that measure; the others show what these measured."""
    return _holding("measure.py")


def module_name(experiment: str, part: str, root: Path = ROOT) -> str:
    """Return the dotted name of an experiment's module levels, measure, show or subject, even if it does not exist."""
    folders = (root / "perfscribe" / "experiments").glob(f"*/{experiment}")
    return f"perfscribe.experiments.{next((folder.parent.name for folder in folders), 'unknown')}.{experiment}.{part}"


def module(experiment: str, part: str) -> ModuleType:
    """Import an experiment's module levels, measure, show or subject."""
    return importlib.import_module(module_name(experiment, part))


@cache
def levels() -> dict[str, Any]:
    """Return the config section that each measuring experiment declares."""
    return {name: module(name, "levels").LEVELS for name in measured()}


def shown(experiment: str) -> Shown:
    """Return the tables and figures that an experiment declares."""
    declared: Shown = module(experiment, "levels").SHOWN
    return declared
