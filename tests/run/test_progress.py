"""Progress: one line a finished cell, read from the journals, with what is left."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key, cell_to_json
from perfscribe.records import journal, records
from perfscribe.run import progress

CODE = "f" * 16


def record(n: int, status: str = "ok", wall_s: float = 2.0, **fields: Any) -> dict[str, Any]:
    """The record of the cell n of the experiment `probe`."""
    factors = {"n": n, "dtype": "fp32"}
    fields.setdefault("samples", {"time_ms": [1.0, 2.0, 4.0]} if status == "ok" else {})
    fields.setdefault("fingerprint", CODE)
    return records.make(
        {
            "experiment": "probe",
            "key": cell_key("probe", factors, fields["fingerprint"], "", 0),
            "round": 1,
            "factors": factors,
            "status": status,
            "reason": "" if status == "ok" else "why",
            "spent": {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 0.0, "wall_s": wall_s},
            **fields,
        }
    )


class Site:
    """A planned site without results: cells 1, 2, ... of one experiment, their cost being n."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = plan.Plan("local", "tiny", ("cs336",), shards={"probe": 1})
        planned = [Cell({"n": n, "dtype": "fp32"}, cost=float(n)) for n in (1, 2, 3, 4)]
        planned.append(Cell({"n": 0, "dtype": "fp32"}, skip="preset tiny"))
        unit = {"experiment": "probe", "fingerprint": CODE, "seed": 0, "rounds": 1, "datasets": [], "shard": 0}
        self.plan.units["measure-probe-0"] = {**unit, "cells": [cell_to_json(cell) for cell in planned]}
        self.plan.write(root / "results" / "local" / "plan")

    def journal(self) -> Path:
        return self.root / "results" / "local" / "journal" / "probe" / "0.jsonl"

    def keep(self, *kept: dict[str, Any]) -> None:
        """Append records to the journal, as a worker does."""
        with journal.Journal(self.journal()) as book:
            for one in kept:
                book.record(one)

    def watch(self) -> tuple[progress.Watcher, io.StringIO]:
        out = io.StringIO()
        return progress.Watcher(self.root, self.plan, out), out


def lines(out: io.StringIO) -> list[str]:
    """What was told, the time of day left out."""
    told = out.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in told)
    return [line[9:] for line in told]


# --- a run ------------------------------------------------------------------------------------------------------


def test_what_failed_is_told_in_the_end_with_how_to_measure_it_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.keep(record(1, "failed"))
    watcher, out = site.watch()
    site.keep(record(2, "failed"), record(3, "oom"), record(4, "failed"))
    watcher.stop()
    assert lines(out)[3:] == [
        "probe: 2 failed; to measure again: ./run remeasure probe status=failed, then ./run report"
    ]


def test_every_finished_cell_is_told_with_what_is_left(tmp_path: Path) -> None:
    site = Site(tmp_path)
    watcher, out = site.watch()
    assert (watcher.total, watcher.done, watcher.seconds_left()) == (4, 0, None)
    site.keep(record(1, wall_s=10.0), record(2, "oom", wall_s=20.0), record(3, wall_s=30.0), record(4, wall_s=1.0))
    watcher.stop()
    # The quickest took 10 s, which each of the others may take too; what came on top of that goes by cost:
    # nothing, then 10 s for a cost of 3, then 30 s for a cost of 6.
    assert lines(out) == [
        "probe n=1: time_ms 2 (1/4, 30 s left)",
        "probe n=2: oom why (2/4, 43 s left)",
        "probe n=3: time_ms 2 (3/4, 30 s left)",
        "probe n=4: time_ms 2 (4/4)",
    ]


def test_what_was_done_before_counts_and_is_not_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.keep(record(1), record(2), record(3, fingerprint="0" * 16), record(77))
    watcher, out = site.watch()
    assert (watcher.total, watcher.done) == (4, 2)
    assert watcher.seconds_left() == pytest.approx(2.0 + 2.0)
    site.keep(record(3), record(3), record(77))
    watcher.stop()
    assert [line.split(" (")[1] for line in lines(out)] == ["3/4, 2 s left)"]


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.journal().parent.mkdir(parents=True)
    watcher, out = site.watch()
    whole = journal.as_line({"event": "record", **record(2)})
    with site.journal().open("ab") as stream:
        stream.write(b'{"event": "started", "key": "1", "round": 1}\n{"torn\n\xff\xfe\n' + whole[:40])
    watcher._tell()
    assert lines(out) == []
    with site.journal().open("ab") as stream:
        stream.write(whole[40:])
    watcher.stop()
    assert lines(out) == ["probe n=2: time_ms 2 (1/4, 6 s left)"]
