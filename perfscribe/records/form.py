"""Validates the format of our files; readers report a violation in one line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STATUSES = ("ok", "oom", "unsupported", "timeout", "failed", "skipped", "not_run")
RAN = ("ok", "oom", "timeout", "failed")  # statuses of cells that ran, with or without success
NOT_OF_THE_FORM = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error)
_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "experiment", "key", "status", "reason", "origin", "environment", "fingerprint"), str),
    **dict.fromkeys(("factors", "samples", "warmup", "values", "series", "timers", "spent", "provenance"), dict),
    "watch": dict,
    "round": int,
    "flags": list,
}
_NAME = re.compile(r"[\w-]{0,200}")  # file name


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Turn any error that malformed content raises in this block into a one-line ValueError that names the file."""
    try:
        yield
    except NOT_OF_THE_FORM as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        text = " ".join(str(error).split())
        raise ValueError(f"{path}: not as it was written ({type(error).__name__}: {text})") from error


def name(found: str) -> str:
    """Validate a name used in a path; ValueError if it could lead elsewhere."""
    if not _NAME.fullmatch(found):
        raise ValueError(f"{found!r} is no name")
    return found


def count(found: int, most: int) -> int:
    """Validate a count; ValueError unless 0 <= found <= most."""
    if not isinstance(found, int) or not 0 <= found <= most:
        raise ValueError(f"{found!r} is no number up to {most}")
    return found


def record(found: Any) -> dict[str, Any]:
    """Validate a record; ValueError names the malformed part."""
    if not isinstance(found, dict):
        raise ValueError("no object")
    for part, kind in _KINDS.items():
        if not isinstance(found.get(part), kind):
            raise ValueError(f"{part} is no {kind.__name__}")
    if found["status"] not in STATUSES:
        raise ValueError(f"there is no status {found['status']!r}")
    if not isinstance(found["provenance"].get("error", {}), dict):
        raise ValueError("error is no object")
    name(found["environment"])
    numbers = [*found["samples"].values(), *found["warmup"].values(), list(found["spent"].values())]
    if not all(isinstance(of, list) and set(map(type, of)) <= {int, float} for of in numbers):
        raise ValueError("samples, warmup or spent hold no numbers")
    return found


def event(found: Mapping[str, Any]) -> None:
    """Raise some exception if a journal's line is not a valid event."""
    kind = found["event"]
    float(found.get("time", 0))
    if kind == "record":
        record(found)
    elif kind == "retired":
        hash((*found["ids"], *((key, number) for key, number in found.get("slots", []))))
    elif kind == "waiting":
        str(found["experiment"]) + str(found["what"])
    else:
        hash((str(found["key"]), int(found["round"])))
