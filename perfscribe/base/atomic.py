"""Atomic replacement of large files and folders: whole or absent, never partial."""

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
    """Yield a temporary path next to `path` for the body to write a file or folder; sync it, then rename it to `path`.

    If the body raises, `path` is unchanged and the temporary files are removed. An existing folder is moved aside
    first: between the two renames `path` is missing, but never mixed.
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
