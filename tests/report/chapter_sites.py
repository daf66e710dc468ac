"""Sites that chapters are tested on: committed ones, the same with rows lost, and one with levels of its own."""

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from workspace import ROOT

from perfscribe.base import chapters
from perfscribe.report.page import Problem
from perfscribe.report.rows import Site
from perfscribe.show.tables import Stored

SITES = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))
STATUSES = ["oom", "failed", "timeout", "skipped", "unsupported", "not_run"]


def folder(name: str) -> Path:
    return ROOT / "results" / name / "tables"


@cache
def device(name: str) -> str:
    return "cuda" if json.loads((folder(name).parent / "summary.json").read_text())["gpus"] else "cpu"


@cache
def site(name: str) -> Site:
    return Site(name, folder(name), device(name))


def keys() -> Iterator[tuple[str, str]]:
    """Each problem that is a file: its chapter and its key."""
    for name in chapters.names():
        chapter = chapters.read(name)
        yield from ((name, key) for key in chapter.problems if chapter.file(key).is_file())


def problem(chapter: str, key: str, of: Site) -> Problem:
    return Problem(chapters.read(chapter), key, of)


class Mutilated(Site):
    """A committed site whose rows are lost or without figures, more or less of them, by a seed."""

    def __init__(self, name: str, seed: str) -> None:
        super().__init__(name, folder(name), device(name))
        self.rng = random.Random(seed)
        self.lost, self.absent = self.rng.choice([0.02, 0.1, 0.3, 0.6, 1.0]), self.rng.random()

    def table(self, table: str) -> Stored:
        if table not in self._tables:
            whole = site(self.name).table(table)
            empty = self.rng.random() < self.lost / 4
            rows = [] if empty else [row for one in whole.rows if (row := self.changed(one, whole.columns))]
            self._tables[table] = Stored(whole.columns, rows)
        return self._tables[table]

    def changed(self, row: Any, columns: Any) -> dict[str, Any] | None:
        draw = self.rng.random()
        if draw < self.lost * self.absent:
            return None
        if draw > self.lost:
            return dict(row)
        status = self.rng.choice(STATUSES)
        figures = {name: status for name, one in columns.items() if one["kind"] in ("figure", "unshown")}
        return {**row, **figures, "status": status, "reason": "a | b (c)"}
