"""Large files and folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, where the body writes a file or a folder; synced and renamed when it ends well.

    Where the body raises, `path` stays as it was and nothing else is left behind. A folder that is there already is
    moved aside first, so that between two renames there may be none, but never a mixed one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        temporary = scratch / path.name
        yield temporary
        for part in [*temporary.rglob("*"), temporary]:
            _sync(part)
        if path.is_dir():
            path.rename(scratch / "old")
        temporary.replace(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(scratch)
