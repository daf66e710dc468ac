"""Files that a user names: they lie where `./run` was called, which goes on in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PERFSCRIBE_CALLED_FROM"  # set by the script run
# Taken out: a process that is started from here, as by a test, is called from a folder of its own.
_FOLDER = os.environ.pop(VARIABLE, "")


def file(name: str) -> Path:
    """The file of this name, relative to the folder that `./run` was called in."""
    # As the user wrote it where that is this folder, for messages.
    return Path(name) if not _FOLDER or Path(_FOLDER) == Path.cwd() else Path(_FOLDER) / name
