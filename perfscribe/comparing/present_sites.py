"""The committed sites that are there, and a digest of what each holds: what a report of an own site is planned by."""

from __future__ import annotations

import hashlib
from pathlib import Path

from perfscribe.drawn import PUBLISHED

# What a comparison reads of one.
READ = ("journal/*/*", "environments/*.json", "plan/measure-*.json", "data/*.digest")


def committed(root: Path) -> list[str]:
    """Names of the committed sites, sorted."""
    return sorted(path.parent.name for path in (root / "results").glob(f"*/{PUBLISHED}"))


def digests(root: Path) -> dict[str, str]:
    """16 hex digits by committed site of all that a comparison reads of it."""
    return {name: _digest(root / "results" / name) for name in committed(root)}


def _digest(folder: Path) -> str:
    """Of names and contents. Published journals are compressed, and a site has 5 MiB at most."""
    whole = hashlib.sha256()
    for path in sorted(path for pattern in READ for path in folder.glob(pattern) if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).digest()
        whole.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return whole.hexdigest()[:16]
