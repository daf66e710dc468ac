"""The journal: source of truth for measurements. One append-only file per shard, one writer at a time.

Each line is one event: `started` before a cell, `record` after it, `retired` for records discarded on purpose,
`interrupted` for a run stopped in a cell, `waiting` for a job that waits for a GPU. Every line is flushed and synced
before the next step, so that kill -9 costs at most the cell in flight. A line ends in the digest of the text before it,
so that damaged lines are never read as measurements.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import heapq
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records import form

Slot = tuple[str, int]  # key of the cell, round
Record = dict[str, Any]

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{16})"\}')
_DIGEST_BYTES = len(', "digest": ""}') + 16


class Damaged(ValueError):
    """A line that differs from what was written; the message has the cause."""


@dataclass
class History:
    """Content of a journal folder: valid records by slot, and the number of starts without an end by slot."""

    records: dict[Slot, list[Record]] = field(default_factory=dict)
    open_starts: dict[Slot, int] = field(default_factory=dict)
    _by_cell: dict[tuple[str, int], list[Record]] = field(default_factory=dict, repr=False)

    def newest(self, slot: Slot, environment: str | None = None) -> Record | None:
        """Newest record of the slot; environment: of that machine and software only (a digest of their identity)."""
        of_slot = reversed(self.records.get(slot, []))
        return next((record for record in of_slot if environment in (None, record["environment"])), None)

    def of_cell(self, factors: dict[str, Any], number: int) -> list[Record]:
        """Return records of the cell with these factors in round `number`, whatever their keys, by time."""
        if not self._by_cell:
            for record in sorted(self.all_records(), key=lambda record: str(record["provenance"].get("time", ""))):
                self._by_cell.setdefault((files.canonical(record["factors"]), int(record["round"])), []).append(record)
        return self._by_cell.get((files.canonical(factors), number), [])

    def all_records(self) -> list[Record]:
        """Return all valid records, without retired ones."""
        return [record for of_slot in self.records.values() for record in of_slot]


def _warn(text: str) -> None:
    print(f"perfscribe: {text}", file=sys.stderr)


def as_line(event: dict[str, Any]) -> bytes:
    """Serialise an event as a line with its digest; ValueError if a field is NaN or infinite."""
    text = json.dumps(event, allow_nan=False, ensure_ascii=False).encode()
    return text[:-1] + f', "digest": "{hashlib.sha256(text).hexdigest()[:16]}"}}\n'.encode()


def _text(line: bytes) -> bytes:
    """Text of a line, without its digest; Damaged if they do not match."""
    digest = _DIGEST.fullmatch(line[-_DIGEST_BYTES:])
    if digest is None:
        raise Damaged("no digest")
    text = line[:-_DIGEST_BYTES] + b"}"
    if hashlib.sha256(text).hexdigest()[:16] != digest[1].decode():
        raise Damaged("its digest differs")
    return text


def parse(line: bytes) -> dict[str, Any]:
    """Parse a line without its line break; Damaged if it differs from what was written."""
    try:
        event = json.loads(_text(line))
        form.event(event)
    except Damaged:
        raise
    except form.NOT_OF_THE_FORM as error:
        raise Damaged(f"no event: {error}") from None
    return dict(event)


def _lines(path: Path, read: Callable[[bytes], Any]) -> Iterator[tuple[bytes, Any, str]]:
    """Yield each line without its break, its value by `read`, and "" or, for a bad line, the fault.

    Stops at a torn line, whose rest may just be being written.
    """
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                yield b"", None, f"{path}: dropped a torn last line ({len(line)} bytes)"
                return
            try:
                yield line[:-1], read(line[:-1]), ""
            except Damaged as error:
                yield b"", None, f"{path}:{number}: damaged line dropped ({error})"


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the file's events in order; damaged lines are dropped with a warning.

    A published journal is compressed (.gz) and never appended to, so damage raises ValueError.
    """
    try:
        for _, event, fault in _lines(path, parse):
            if fault and path.suffix == ".gz":
                raise Damaged(f"{fault.replace(' dropped', '')}; a published journal must be as it was committed")
            if fault:
                _warn(fault)
            else:
                yield event
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None


def read(folder: Path) -> History:
    """Merge all journal files of one experiment in the order of time."""
    history = History()
    retired: set[str] = set()
    paths = [*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")] if folder.is_dir() else []
    journals = [_events(path) for path in sorted(paths)]
    for event in heapq.merge(*journals, key=lambda event: float(event.get("time", 0))):
        _apply(history, retired, event)
    if retired:
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
    if kind == "waiting":  # for the progress display; no cell
        return
    slot = (str(event["key"]), int(event["round"]))
    if kind == "started":
        # A second attempt belongs to the start of the first.
        history.open_starts[slot] = history.open_starts.get(slot, 0) + (event.get("attempt", 1) == 1)
    elif kind == "interrupted":
        history.open_starts[slot] = max(0, history.open_starts.get(slot, 0) - 1)
    elif kind == "record":
        history.open_starts.pop(slot, None)
        record = {name: part for name, part in event.items() if name not in ("event", "time", "digest")}
        history.records.setdefault(slot, []).append(record)


class Journal:
    """Writer of one journal file. Use as a context; a second writer waits until the first is done."""

    def __init__(self, path: Path) -> None:
        self.path, self.appended = path, 0  # events

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(self.path, "ab")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # An earlier job outlived its Snakemake: its cells count, so wait instead of measuring next to it.
            _warn(f"{self.path.name}: another job still measures this shard; waiting for it")
            fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._put_damaged_lines_aside()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _put_damaged_lines_aside(self) -> None:
        """Drop bad lines, reporting each once; save a copy first unless only a torn last line is dropped."""
        faults = [fault for *_, fault in _lines(self.path, _text) if fault]
        if not faults:
            return
        content = self.path.read_bytes()
        whole = b"".join(line + b"\n" for line, _, fault in _lines(self.path, _text) if not fault)
        if not content.startswith(whole):  # more than a torn last line
            self.path.with_suffix(".damaged").write_bytes(content)
        with open(self.path, "rb+") as stream:  # not a new file: the lock is on this one
            stream.write(whole)
            stream.truncate()
            os.fsync(stream.fileno())
        for fault in faults:
            _warn(fault)

    def append(self, event: str, **fields: Any) -> None:
        """Write one event durably. ValueError if a field is NaN or infinite, or outside a `with` of this journal."""
        self._stream.write(as_line({"event": event, "time": round(time.time(), 3), **fields}))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.appended += 1

    def started(self, slot: Slot, environment: str, attempt: int = 1) -> None:
        """Record that a cell is about to run; attempt 2 follows one that died or ran out of memory."""
        self.append("started", key=slot[0], round=slot[1], environment=environment, attempt=attempt, pid=os.getpid())

    def interrupted(self, slot: Slot) -> None:
        """Record that the run was stopped while the cell ran, which is not the cell's fault."""
        self.append("interrupted", key=slot[0], round=slot[1])

    def record(self, record: dict[str, Any]) -> None:
        """Append a cell's record."""
        self.append("record", **record)

    def retire(self, records: list[dict[str, Any]], why: str) -> None:
        """Discard records on purpose, so that their cells are measured again."""
        slots = [[record["key"], record["round"]] for record in records]
        self.append("retired", ids=[record["id"] for record in records], slots=slots, why=why)
