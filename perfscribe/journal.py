"""The journal: the one truth about what was measured. One append-only file a shard, one writer at a time.

Each line is one event: `started` before a cell, `record` after it, `retired` where records are given up on purpose,
`interrupted` where a run was asked to stop in a cell, `waiting` where a job waits for a GPU. Every line is flushed and
synced before the next step, so that kill -9 costs at most the cell in flight.
"""

from __future__ import annotations

import fcntl
import gzip
import heapq
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

Slot = tuple[str, int]  # key of the cell, round


@dataclass
class History:
    """What a journal folder says: records that stand, by slot, and how often a slot was started without an end."""

    records: dict[Slot, list[dict[str, Any]]] = field(default_factory=dict)
    open_starts: dict[Slot, int] = field(default_factory=dict)

    def latest(self, slot: Slot, environment: str | None = None) -> dict[str, Any] | None:
        """The slot's newest record, of one environment where that is given."""
        found: dict[str, Any]
        for found in reversed(self.records.get(slot, [])):
            if environment is None or found["environment"] == environment:
                return found
        return None

    def all_records(self) -> Iterable[dict[str, Any]]:
        """Every record that stands, retired ones left out."""
        for records in self.records.values():
            yield from records


def _warn(text: str) -> None:
    print(f"perfscribe: {text}", file=sys.stderr)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The file's events in order; what is no whole line of JSON (torn by a crash) is dropped with a warning.

    A published journal, to which nothing is appended any more, is compressed (.gz).
    """
    events = []
    content = path.read_bytes()
    *lines, torn = (gzip.decompress(content) if path.suffix == ".gz" else content).split(b"\n")
    if torn:
        _warn(f"{path}: dropped a torn last line ({len(torn)} bytes)")
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event:
                raise ValueError("no event")
        except ValueError:
            _warn(f"{path}:{number}: dropped a torn line")
            continue
        events.append(event)
    return events


def read(folder: Path, names: str = "*.jsonl") -> History:
    """The history of all journal files of one experiment, whose events are taken in the order of their times.

    names: a pattern of files, where only some of them count.
    """
    history = History()
    retired: set[str] = set()
    paths = [*folder.glob(names), *folder.glob(f"{names}.gz")] if folder.is_dir() else []
    journals = [read_events(path) for path in sorted(paths)]
    for event in heapq.merge(*journals, key=lambda event: float(event.get("time", 0))):
        _apply(history, retired, event)
    for slot, records in history.records.items():
        history.records[slot] = [record for record in records if record["id"] not in retired]
    return history


def _apply(history: History, retired: set[str], event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "retired":
        retired.update(event["ids"])
        for key, number in event.get("slots", []):
            history.open_starts.pop((key, number), None)
        return
    if kind == "waiting":  # told to who watches, and of no cell
        return
    slot = (str(event["key"]), int(event["round"]))
    if kind == "started":
        # A second attempt belongs to the start whose first one ended.
        history.open_starts[slot] = history.open_starts.get(slot, 0) + (event.get("attempt", 1) == 1)
    elif kind == "interrupted":
        history.open_starts[slot] = max(0, history.open_starts.get(slot, 0) - 1)
    elif kind == "record":
        history.open_starts.pop(slot, None)
        record = {name: value for name, value in event.items() if name not in ("event", "time")}
        history.records.setdefault(slot, []).append(record)


class Journal:
    """The writing end of one journal file. Use as a context; a second writer waits until the first is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(self.path, "a", encoding="utf-8")
        self._lock(self._stream)
        self._drop_torn_line()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _lock(self, stream: TextIO) -> None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # An earlier job outlived its Snakemake: its cells count, so wait rather than measure beside it.
            _warn(f"{self.path.name}: another job still measures this shard; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            keep = content.rfind(b"\n") + 1
            _warn(f"{self.path}: dropped a torn last line ({len(content) - keep} bytes)")
            os.truncate(self.path, keep)

    def append(self, event: str, **fields: Any) -> None:
        """Write one event durably; ValueError where a field holds NaN or infinity."""
        if self._stream is None:
            raise RuntimeError("the journal is not open")
        content = {"event": event, "time": round(time.time(), 3), **fields}
        line = json.dumps(content, allow_nan=False, ensure_ascii=False)
        self._stream.write(line + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def started(self, slot: Slot, environment: str, attempt: int = 1) -> None:
        """Say that a cell is about to run; attempt 2 follows one that ended in a death or out of memory."""
        self.append("started", key=slot[0], round=slot[1], environment=environment, attempt=attempt, pid=os.getpid())

    def interrupted(self, slot: Slot) -> None:
        """Say that the run was asked to stop while the cell ran: not the cell's fault."""
        self.append("interrupted", key=slot[0], round=slot[1])

    def record(self, record: dict[str, Any]) -> None:
        """Keep a cell's record."""
        self.append("record", **record)

    def retire(self, records: Iterable[dict[str, Any]], why: str) -> int:
        """Give records up on purpose, so that their cells are measured again; returns how many."""
        given_up = list(records)
        self.append(
            "retired",
            ids=[record["id"] for record in given_up],
            slots=[[record["key"], record["round"]] for record in given_up],
            why=why,
        )
        return len(given_up)
