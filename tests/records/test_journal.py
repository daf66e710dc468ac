"""The journal: what is read back after a crash at any byte, retirements, and two writers."""

import gzip
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sessions
from sessions import wait_for
from workspace import ROOT

from perfscribe.base import files
from perfscribe.records import journal, records


def record(key: str = "a", number: int = 1, **fields: Any) -> dict[str, Any]:
    own = {"experiment": "probe", "key": key, "round": number, "status": "ok", "factors": {}, "fingerprint": ""}
    return {**records.make(own), "id": f"{key}{number}", "environment": "e1", **fields}


def write(path: Path, *records: dict[str, Any]) -> None:
    with journal.Journal(path) as book:
        for one in records:
            book.started((one["key"], one["round"]), one["environment"])
            book.record(one)


def ids(folder: Path) -> set[str]:
    return {one["id"] for one in journal.read(folder).all_records()}


def test_a_crash_at_any_byte_loses_only_the_line_being_written(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut" / "0.jsonl"
    cut.parent.mkdir()
    write(whole, record("a"), record("b"), record("ä"))
    content = whole.read_bytes()
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        whole_lines = [json.loads(line) for line in content[:size].split(b"\n")[:-1]]
        assert ids(cut.parent) == {line["id"] for line in whole_lines if line["event"] == "record"}, size


def test_a_writer_goes_on_after_a_torn_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0.jsonl"
    write(path, record("a"), record("b"))
    path.write_bytes(path.read_bytes()[:-30])
    assert ids(tmp_path) == {"a1"}
    assert journal.read(tmp_path).open_starts[("b", 1)] == 1
    write(path, record("c"))
    assert ids(tmp_path) == {"a1", "c1"}
    assert "dropped a torn last line" in capsys.readouterr().err


def test_a_writer_puts_rubbish_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0.jsonl"
    write(path, record("a"))
    damaged = b'\xff\xfe{"half\n[1, 2]\n{"no": "event"}\n' + path.read_bytes()
    path.write_bytes(damaged)
    write(path, record("b"))
    assert capsys.readouterr().err.count("damaged line dropped (no ") == 3
    assert ids(tmp_path) == {"a1", "b1"} and not capsys.readouterr().err
    assert path.with_suffix(".damaged").read_bytes() == damaged


def test_a_line_that_was_changed_is_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0.jsonl"
    write(path, record("a", samples={"time_ms": [1.5]}), record("b"))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1].replace(b"[1.5]", b"[1500.0]"), *lines[2:]]))
    assert ids(tmp_path) == {"b1"} and journal.read(tmp_path).open_starts[("a", 1)] == 1
    assert re.fullmatch(r"(perfscribe: .*/0\.jsonl:2: damaged line dropped \(.*\)\n)+", capsys.readouterr().err)
    published = tmp_path / "published" / "0.jsonl.gz"
    files.write_bytes(published, gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match=r"0\.jsonl\.gz:2: damaged line \(.*\); a published journal must be as it was"):
        journal.read(published.parent)
    files.write_bytes(published, gzip.compress(b"\n".join(lines))[:-9])
    with pytest.raises(ValueError, match=r"0\.jsonl\.gz: cannot be read"):
        journal.read(published.parent)


HOLD = """
import sys, time
from pathlib import Path
from perfscribe.records import journal, records
with journal.Journal(Path(sys.argv[1])) as book:
    print("held", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    own = {"experiment": "probe", "key": "a", "round": 1, "status": "ok", "factors": {}, "fingerprint": ""}
    book.record(records.make(own))
"""


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    path, go_on = tmp_path / "0.jsonl", tmp_path / "go_on"
    python = [sys.executable, "-c", HOLD, str(path), str(go_on)]
    with sessions.running(python, ROOT, os.environ, tmp_path / "first.log") as first:
        wait_for(lambda: first.log() == "held\n")
        with sessions.running(python, ROOT, os.environ, tmp_path / "second.log") as second:
            wait_for(lambda: "another job still measures this shard" in second.log(), 20)
            time.sleep(0.2)
            assert second.alive() and "held" not in second.log()
            go_on.touch()
            assert second.wait(20) == 0
    assert len([*map(journal.parse, path.read_bytes().splitlines())]) == 2
