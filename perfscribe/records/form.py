"""Validates the format of our files; readers report a violation in one line."""

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


def name(text: str) -> str:
    """Validate a name used in a path; ValueError if it could lead elsewhere."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name")
    return text


def count(number: int, most: int) -> int:
    """Validate a count; ValueError unless 0 <= number <= most."""
    if not isinstance(number, int) or not 0 <= number <= most:
        raise ValueError(f"{number!r} is no number up to {most}")
    return number


def record(content: Any) -> dict[str, Any]:
    """Validate a record; ValueError names the malformed part."""
    if not isinstance(content, dict):
        raise ValueError("no object")
    for part, kind in _KINDS.items():
        if not isinstance(content.get(part), kind):
            raise ValueError(f"{part} is no {kind.__name__}")
    if content["status"] not in STATUSES:
        raise ValueError(f"there is no status {content['status']!r}")
    if not isinstance(content["provenance"].get("error", {}), dict):
        raise ValueError("error is no object")
    name(content["environment"])
    numbers = [*content["samples"].values(), *content["warmup"].values(), list(content["spent"].values())]
    if not all(isinstance(values, list) and set(map(type, values)) <= {int, float} for values in numbers):
        raise ValueError("samples, warmup or spent hold no numbers")
    return content


def event(content: Mapping[str, Any]) -> None:
    """Raise some exception if a journal's line is not a valid event."""
    kind = content["event"]
    float(content.get("time", 0))
    if kind == "record":
        record(content)
    elif kind == "retired":
        hash((*content["ids"], *((key, number) for key, number in content.get("slots", []))))
    elif kind == "waiting":
        str(content["experiment"]) + str(content["what"])
    else:
        hash((str(content["key"]), int(content["round"])))
