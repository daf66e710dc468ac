"""The file beside a data set that says what its arrays are, and what its files were when they were written.

Its key "arrays", the digest of the arrays, is the same on every machine and goes into the keys of measurements. The
sums of the files may differ between machines, whose libraries write other headers, and only tell damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KEYS = ("dataset", "parameters", "arrays", "raw_bytes", "files")


def describe_file(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as stream:
        return {"size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def load_digest(path: Path) -> dict[str, Any]:
    """The content of a digest file; ValueError with one line where it is missing or is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be read ({error.strerror}); generate the data set again") from error
    except ValueError as error:
        raise ValueError(f"{path.name}: no JSON ({error}); delete it and generate the data set again") from error
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{path.name}: no digest of a data set: {', '.join(missing)} missing")
    return dict(content)


def verify(folder: Path, digest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Compare these files below the folder with the digest; ValueError names the first damaged one."""
    for name in names:
        expected = digest["files"].get(name)
        path, shown = folder / name, f"{folder.name}/{name}"
        if expected is None:
            raise ValueError(f"{shown}: not in the data set, which was generated without this format")
        if not path.is_file():
            raise ValueError(f"{shown}: missing; generate the data set again")
        if describe_file(path) != expected:
            raise ValueError(f"{shown}: damaged (its SHA-256 is not the one written); delete it and generate again")
