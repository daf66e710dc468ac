"""Sites that chapters are tested on: committed ones, the same with rows lost, and one with levels of its own."""

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from workspace import ROOT

from perfscribe.base import chapters
from perfscribe.report import templates
from perfscribe.report.page import Problem
from perfscribe.report.rows import Site
from perfscribe.show.tables import NOT_RECORDED, Stored

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
    """Draw a problem; its text is compiled once for all sites."""
    jinja = templates.environment(None)
    if "parse" not in vars(jinja):
        vars(jinja).update(parse=cache(jinja.parse), compile=cache(jinja.compile))
    return Problem(chapters.read(chapter), key, of)


def lost(row: Any, status: str, reason: str, columns: Any) -> dict[str, Any]:
    """A row without figures."""
    figures = {name: status for name, one in columns.items() if one["kind"] in ("figure", "unshown")}
    return {**row, **figures, "status": status, "reason": reason}


class Lacking(Site):
    """A committed site without one table, as of a run of only some experiments."""

    def __init__(self, name: str, table: str) -> None:
        super().__init__(name, folder(name), device(name))
        self.left_out = table

    def table(self, table: str) -> Stored:
        return Stored({}, []) if table == self.left_out else site(self.name).table(table)


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
        return lost(row, self.rng.choice(STATUSES), "a | b (c)", columns)


class Shaken(Mutilated):
    """One whose times and shares are changed at random, as noise may: differences of them may be below 0."""

    def changed(self, row: Any, columns: Any) -> dict[str, Any] | None:
        names = [name for name in columns if name.endswith(("_ms", "_s", "_percent"))]
        return {**row, **{name: self.shaken(row[name]) for name in names}}

    def shaken(self, figure: Any) -> Any:
        if not isinstance(figure, float):
            return figure
        return self.rng.choice([1, 1, 1, 0, -1]) * self.rng.uniform(0.1, 10) * figure


class Newer(Site):
    """A committed site as today's code would measure it: figures that its records are too old for have a number."""

    def __init__(self, name: str) -> None:
        super().__init__(name, folder(name), device(name))

    def table(self, table: str) -> Stored:
        whole = site(self.name).table(table)
        old = {name for name, one in whole.columns.items() if one["kind"] == "figure" and not one["exact"]}
        rows = [
            {name: 7.5 if name in old and cell == NOT_RECORDED else cell for name, cell in row.items()}
            for row in whole.rows
        ]
        return Stored(whole.columns, rows)


# Levels that no homework asks for: a row of the table with the first levels is repeated with the second ones.
ADDED: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "cs336.pytorch_attention": [({"seq_len": 1024, "head_dim": 64}, {"seq_len": 2048}),
                                ({"head_dim": 128}, {"head_dim": 96})],
    "cs336.nsys_forward": [({"size": "small", "seq_len": 1024}, {"seq_len": 2048})],
    "cs336.benchmarking_script": [({"size": "small", "seq_len": 1024}, {"seq_len": 1536})],
    "cs336.memory_peaks": [({"seq_len": 512, "size": "2.7B"}, {"seq_len": 640})],
    "cs336.flash_cells": [({"seq_len": 1024, "head_dim": 64}, {"seq_len": 1536})],
    "cs336.all_reduce": [({"message": "100 MB", "world_size": 2}, {"message": "300 MB", "size_bytes": 314572800})],
    "cs336.ddp_benchmark": [({"bucket_mb": 10, "world_size": 2}, {"bucket_mb": 25})],
    "fsdp.multi_gpu": [({"world_size": 2}, {"world_size": 3})],
    "fsdp.custom_multi_gpu": [({"world_size": 2}, {"world_size": 3})],
}  # fmt: skip
# Rows with these levels have no figures.
FAILED: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    "cs336.pytorch_attention": [({"seq_len": 16384, "head_dim": 128}, "oom", "asked for 8 GiB, 2 GiB free"),
                                ({"seq_len": 16384, "head_dim": 96}, "oom", "asked for 8 GiB, 2 GiB free"),
                                ({"seq_len": 16384, "head_dim": 64}, "failed", "RuntimeError: CUDA error"),
                                ({"seq_len": 16384, "head_dim": 32}, "timeout", "took longer than 60 s")],
    "cs336.ddp_benchmark": [({"world_size": 4}, "skipped", "2 GPUs"), ({"bucket_mb": 1000}, "oom", "asked for 8 GiB")],
}  # fmt: skip
# A user's own code: rows of these tables again, as theirs.
SUBJECT = {
    "cs336.subject_flash": ("cs336.flash_cells", {"triton": "yours"}),
    "cs336.subject_ddp": ("cs336.ddp_benchmark", {"overlap_bucketed": "overlap_bucketed (yours)"}),
    "cs336.subject_sharding": ("cs336.sharding_times", {"sharded (ours)": "sharded (yours)"}),
}


class Odd(Site):
    """h200x4 with levels of its own, rows out of memory and failed ones, and a user's own code."""

    def __init__(self) -> None:
        super().__init__("odd", folder("h200x4"), "cuda")

    def table(self, table: str) -> Stored:
        if table in SUBJECT:
            source, names = SUBJECT[table]
            whole = self.table(source)
            rows = [
                {**row, "implementation": names[row["implementation"]], "subject": "yours"}
                for row in whole.rows
                if row["implementation"] in names
            ]
            return Stored(whole.columns, rows)
        whole = site("h200x4").table(table)
        rows = [dict(row) for row in whole.rows]
        for levels, changed in ADDED.get(table, []):
            rows += [{**row, **changed} for row in rows if levels.items() <= row.items()]
        for levels, status, reason in FAILED.get(table, []):
            rows = [lost(row, status, reason, whole.columns) if levels.items() <= row.items() else row for row in rows]
        return Stored(whole.columns, rows)
