"""Paths from the command line, relative to the folder where the user called `./run` (it changes to the checkout)."""

import os
from pathlib import Path

VARIABLE = "PERFSCRIBE_CALLED_FROM"  # set by the script `run`
# Removed from the environment: a child process, such as one started by a test, has its own working directory.
_FOLDER = os.environ.pop(VARIABLE, "")


def text(path: Path, root: Path | None = None) -> str:
    """Return the UTF-8 text of a user's file, line ends unchanged, without a byte order mark.

    Raises ValueError (one line); with `root`, the message names the file relative to it.
    """
    shown = path.relative_to(root) if root else path
    try:
        if path.is_fifo():  # reading a pipe would block
            raise OSError(None, "a pipe")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{shown}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown}: not UTF-8 text (byte {error.start})") from None


def file(name: str) -> Path:
    """Return the path of a file that the user named relative to the folder where `./run` was called."""
    # Unchanged where that is the current folder, so that messages show what the user typed.
    return Path(name) if not _FOLDER or Path(_FOLDER) == Path.cwd() else Path(_FOLDER) / name
