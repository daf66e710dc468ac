"""Files that a user names: they lie where `./run` was called, which goes on in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PERFSCRIBE_CALLED_FROM"  # set by the script run
# Taken out: a process that is started from here, as by a test, is called from a folder of its own.
_FOLDER = os.environ.pop(VARIABLE, "")


def text(path: Path, root: Path | None = None) -> str:
    """The UTF-8 text of a user's file, line ends as they are, without a byte order mark.

    ValueError with one line, which names the file relative to root.
    """
    shown = path.relative_to(root) if root else path
    try:
        if path.is_fifo():  # it would keep us waiting
            raise OSError(None, "a pipe")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{shown}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown}: not UTF-8 text (byte {error.start})") from None


def file(name: str) -> Path:
    """The file of this name, relative to the folder that `./run` was called in."""
    # As the user wrote it where that is this folder, for messages.
    return Path(name) if not _FOLDER or Path(_FOLDER) == Path.cwd() else Path(_FOLDER) / name
