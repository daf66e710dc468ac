"""Progress: one line a finished cell, read from the journals, with what is left."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key, cell_to_json
from perfscribe.records import journal, records
from perfscribe.run import progress

CODE = "f" * 16


def record(n: int, status: str = "ok", wall_s: float = 2.0, number: int = 1, **fields: Any) -> dict[str, Any]:
    """The record of the cell n of the experiment `probe`."""
    factors = {"n": n, "dtype": "fp32"}
    fields.setdefault("samples", {"time_ms": [1.0, 2.0, 4.0]} if status == "ok" else {})
    fields.setdefault("fingerprint", CODE)
    return records.make(
        {
            "experiment": "probe",
            "key": cell_key("probe", factors, fields["fingerprint"], "", 0),
            "round": number,
            "factors": factors,
            "status": status,
            "reason": "" if status == "ok" else "why",
            "spent": {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 0.0, "wall_s": wall_s},
            **fields,
        }
    )


class Site:
    """A planned site without results: cells 1, 2, ... of one experiment, their cost being n, dealt to shards."""

    def __init__(self, root: Path, cells: int = 4, shards: int = 1, rounds: int = 1) -> None:
        self.root = root
        self.plan = plan.Plan("local", "tiny", ("cs336",), shards={"probe": shards})
        planned = [Cell({"n": n, "dtype": "fp32"}, cost=float(n)) for n in range(1, cells + 1)]
        planned.append(Cell({"n": 0, "dtype": "fp32"}, skip="preset tiny"))
        for shard in range(shards):
            unit = {"experiment": "probe", "fingerprint": CODE, "seed": 0, "rounds": rounds, "datasets": []}
            dealt = [cell_to_json(cell) for cell in planned[shard::shards]]
            self.plan.units[f"measure-probe-{shard}"] = {**unit, "shard": shard, "cells": dealt}
        self.plan.write(root / "results" / "local" / "plan")

    def journal(self, shard: int = 0) -> Path:
        return self.root / "results" / "local" / "journal" / "probe" / f"{shard}.jsonl"

    def keep(self, *kept: dict[str, Any], shard: int = 0) -> None:
        """Append records to a shard's journal, as its worker does."""
        with journal.Journal(self.journal(shard)) as book:
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


# --- a line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "time_ms 2"),
        ({"samples": {"a_ms": [], "b_ms": [1234.5678]}}, "b_ms 1.23e+03"),
        ({"samples": {}, "values": {"logits_dtype": "bfloat16"}}, "logits_dtype bfloat16"),
        ({"samples": {}}, "ok"),
        ({"status": "oom", "reason": "no room"}, "oom no room"),
        ({"status": "failed", "reason": "x" * 300}, "failed " + "x" * 63),
    ],
)
def test_headline(fields: dict[str, Any], text: str) -> None:
    assert progress.headline({**record(1), **fields}) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(89.4, "89 s"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


# --- a growing file ---------------------------------------------------------------------------------------------


def test_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    tail = progress.Tail(path)
    assert list(tail.lines()) == []
    path.write_text("one\ntwo\nthr")
    assert list(tail.lines()) == ["one", "two"]
    assert list(tail.lines()) == []
    with path.open("a") as stream:
        stream.write("ee\nfour\n")
    assert list(tail.lines()) == ["three", "four"]


def test_a_torn_line_that_the_next_writer_cuts_off_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_text('old\n{"torn by kill -9')
    tail = progress.Tail(path)
    path.write_text("old\nthe first after it\n")
    assert list(tail.lines()) == ["the first after it"]


# --- a run ------------------------------------------------------------------------------------------------------


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


def test_a_job_that_waits_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    watcher, out = site.watch()
    with journal.Journal(site.journal()) as book:
        book.append("waiting", what="waits for GPU 0", experiment="probe")
    watcher.stop()
    assert lines(out) == ["probe waits for GPU 0"]
    assert journal.read(site.journal().parent).records == {}


def test_cells_of_all_shards_and_rounds_count(tmp_path: Path) -> None:
    site = Site(tmp_path, shards=2, rounds=2)
    watcher, out = site.watch()
    assert watcher.total == 8
    site.keep(record(1), record(1, number=2), shard=0)
    site.keep(record(2), shard=1)
    watcher.stop()
    assert [re.search(r"\((\d/\d)", line)[1] for line in lines(out)] == ["1/8", "2/8", "3/8"]  # type: ignore[index]


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
    whole = json.dumps({"event": "record", **record(2)})
    with site.journal().open("ab") as stream:
        stream.write(b'{"event": "started", "key": "1", "round": 1}\n{"torn\n\xff\xfe\n' + whole[:40].encode())
    watcher._tell()
    assert lines(out) == []
    with site.journal().open("a") as stream:
        stream.write(whole[40:] + "\n")
    watcher.stop()
    assert lines(out) == ["probe n=2: time_ms 2 (1/4, 6 s left)"]


def test_a_thread_tells_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    site = Site(tmp_path)
    watcher, out = site.watch()
    watcher.start()
    site.keep(record(1))
    deadline = time.monotonic() + 10
    while not out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(lines(out)) == 1
    site.keep(record(2))
    watcher.stop()
    assert len(lines(out)) == 2
