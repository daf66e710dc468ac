"""`./run plan`: what the journal says of each cell, and how long the rest may take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key, cell_to_json
from perfscribe.records import journal, records
from perfscribe.verbs import overview

CODE, OLD, SEED = "f" * 16, "0" * 16, 0


def site(root: Path, cells: list[Cell], shards: int = 1) -> plan.Plan:
    """A plan of one experiment, written as a run writes it."""
    made = plan.Plan("local", "tiny", ("cs336",), shards={"probe": shards})
    for shard in range(shards):
        unit = {"experiment": "probe", "fingerprint": CODE, "seed": SEED, "rounds": 1}
        made.units[f"measure-probe-{shard}"] = {**unit, "cells": [cell_to_json(cell) for cell in cells[shard::shards]]}
    made.write(root / "results" / "local" / "plan")
    return made


def keep(
    root: Path, n: int, status: str = "ok", code: str = CODE, wall_s: float = 10.0, place: str = "local", **fields: Any
) -> None:
    """A record of the cell n in the journal."""
    record = records.make(
        {
            "experiment": "probe",
            "key": cell_key("probe", {"n": n}, code, fields.get("data_digest", ""), SEED),
            "round": 1,
            "factors": {"n": n},
            "status": status,
            "reason": "" if status == "ok" else "why",
            "fingerprint": code,
            "spent": {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 0.0, "wall_s": wall_s},
            **fields,
        }
    )
    with journal.Journal(root / "results" / place / "journal" / "probe" / "0.jsonl") as book:
        book.record(record)


def cell(n: int, **fields: Any) -> Cell:
    return Cell({"n": n}, cost=float(n), **fields)


def told(root: Path, made: plan.Plan) -> tuple[dict[tuple[int, int], str], str, str]:
    """Status by cell and round; time of the experiment; the last line."""
    text = overview.describe(root, made, ["probe"])
    cells = {
        (int(n), int(number)): status for n, number, status in re.findall(r"^probe +n=(\d+) +(\d) +(.*)$", text, re.M)
    }
    summary = re.findall(r"^probe +\d+ +\d+ +\d+ +(.*)$", text, re.M)
    return cells, summary[0], text.splitlines()[-1].removesuffix("; cell by cell: ./run plan EXPERIMENT")


def test_nothing_measured_yet(tmp_path: Path) -> None:
    cells, time, last = told(tmp_path, site(tmp_path, [cell(1), cell(2, skip="preset tiny")]))
    assert cells == {(1, 1): "to measure", (2, 1): "skipped (preset tiny)"}
    assert time == "no estimate: no site of this preset has it"
    assert last == "site local, preset tiny; to measure: without an estimate, probe"


def test_the_journal_gives_each_cell_its_status(tmp_path: Path) -> None:
    made = site(tmp_path, [cell(n) for n in range(1, 6)])
    keep(tmp_path, 1)
    keep(tmp_path, 2, "oom")
    keep(tmp_path, 3, code=OLD)
    keep(tmp_path, 4, "failed")
    keep(tmp_path, 4)
    cells, _, _ = told(tmp_path, made)
    assert [cells[n, 1] for n in range(1, 6)] == ["ok", "oom", "to measure (code changed)", "ok", "to measure"]


def test_what_was_never_measured_here_takes_as_long_as_on_a_committed_site(tmp_path: Path) -> None:
    made = site(tmp_path, [cell(n) for n in (1, 2)])
    for name, preset, seconds in (("like", "tiny", (30.0, 40.0)), ("other", "gpu", (1.0, 1.0))):
        for n, wall_s in enumerate(seconds, 2):
            keep(tmp_path, n, code=OLD, wall_s=wall_s, place=name)
        folder = tmp_path / "results" / name
        (folder / "plan").mkdir()
        (folder / "published.json").write_text("{}")
        (folder / "plan" / "index.json").write_text(f'{{"preset": "{preset}"}}')
    # Cell 2 as there, cell 1 as the median of 30 and 40 s.
    assert told(tmp_path, made)[1] == "about 70 s, as on like"
