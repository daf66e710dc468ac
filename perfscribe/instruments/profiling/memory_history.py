"""A memory history: what the allocator did during a pass, as plain data and as a file.

Every block handed out and taken back, with the stack that asked for it. Times are of the host's clock, at which the
allocator works; the device may run far behind. memory_recorder makes histories.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from perfscribe.base.atomic import replacing

FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """Who asked for a block: the operator ("" where it is not recorded) and Python's frames, innermost first."""

    operator: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """A block that was there before. rest_bytes: beyond size_bytes, since the allocator did not split the block."""

    address: int
    size_bytes: int
    rest_bytes: int = 0
    label: str = ""


@dataclass(frozen=True)
class Change:
    """A block handed out, or taken back (size_bytes negative, origin -1).

    time_us: since the history's start. size_bytes: as asked for, not rounded up. origin: index in History.origins.
    """

    time_us: int
    address: int
    size_bytes: int
    origin: int = -1


@dataclass(frozen=True)
class Mark:
    """The end of a phase; the allocator's own counters of it, in bytes, where it has some (CUDA)."""

    name: str
    time_us: int
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass
class History:
    """One recorded pass.

    labels: what the blocks are that were alive at its end, by address. out_of_memory: bytes asked for and free, for
    each time that the allocator gave up.
    """

    counter: str
    granularity_bytes: int
    held: list[Held] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    out_of_memory: list[tuple[int, int]] = field(default_factory=list)


def write(history: History, path: Path) -> None:
    """The history as compressed JSON, columns in place of rows; the file's folder is made where it is missing."""
    content = {
        "format": FORMAT,
        "counter": history.counter,
        "granularity_bytes": history.granularity_bytes,
        "held": _columns(Held, history.held),
        "changes": _columns(Change, history.changes),
        "marks": _columns(Mark, history.marks),
        "origins": _origins_to_json(history.origins),
        "labels": [[address, label] for address, label in history.labels.items()],
        "out_of_memory": [list(sizes) for sizes in history.out_of_memory],
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> History:
    """The inverse of write; ValueError where the file is of another format."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    if content.get("format") != FORMAT:
        raise ValueError(f"{path.name}: format {content.get('format')}, expected {FORMAT}")
    return History(
        counter=content["counter"],
        granularity_bytes=content["granularity_bytes"],
        held=_rows(Held, content["held"]),
        changes=_rows(Change, content["changes"]),
        marks=_rows(Mark, content["marks"]),
        origins=_origins_from_json(content["origins"]),
        labels={address: label for address, label in content["labels"]},
        out_of_memory=[(asked, free) for asked, free in content["out_of_memory"]],
    )


def _names(kind: type[Any]) -> list[str]:
    return [column.name for column in fields(kind)]


def _columns(kind: type[Any], rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in _names(kind)}


def _rows(kind: type[Any], columns: Mapping[str, list[Any]]) -> list[Any]:
    return [kind(*values) for values in zip(*(columns[name] for name in _names(kind)), strict=True)]


def _origins_to_json(origins: Sequence[Origin]) -> dict[str, list[Any]]:
    """Each frame once, stacks as indices into them."""
    index: dict[str, int] = {}
    stacks = [[index.setdefault(frame, len(index)) for frame in origin.frames] for origin in origins]
    return {"operators": [origin.operator for origin in origins], "stacks": stacks, "frames": list(index)}


def _origins_from_json(content: Mapping[str, list[Any]]) -> list[Origin]:
    return [
        Origin(operator, tuple(content["frames"][number] for number in stack))
        for operator, stack in zip(content["operators"], content["stacks"], strict=True)
    ]
