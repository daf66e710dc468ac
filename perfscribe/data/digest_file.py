"""The digest file next to a data set, which identifies its arrays and the files as written.

The key "arrays" (digest of the arrays) is the same on every machine and part of the keys of measurements. File
checksums may differ between machines, as libraries write different headers; they only detect damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KEYS = ("dataset", "parameters", "arrays", "raw_bytes", "files")


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size in bytes and the SHA-256 of a file."""
    with path.open("rb") as stream:
        return {"size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def load_digest(path: Path) -> dict[str, Any]:
    """Return the content of a digest file; raises ValueError (one line) if it is missing or not a digest."""
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
    """Compare the named files with the digest; raises ValueError naming the first that is damaged or missing."""
    for name in names:
        expected = digest["files"].get(name)
        path, shown = folder / name, f"{folder.name}/{name}"
        if expected is None:
            raise ValueError(f"{shown}: not in the data set, which was generated without this format")
        if not path.is_file():
            raise ValueError(f"{shown}: missing; generate the data set again")
        if describe_file(path) != expected:
            raise ValueError(f"{shown}: damaged (its SHA-256 is not the one written); delete it and generate again")
