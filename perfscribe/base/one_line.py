"""Ends a program with one line for errors caused by a file, a disk or the config."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Argument parser of a verb that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise SystemExit with the line."""
        sys.exit(f"run: {self.prog.removeprefix('./run ')}: {message} ({self.prog} --help)")


def paths(program: str | None, *options: str) -> argparse.Namespace:
    """Parse a script's options, each of which takes a path; --records takes any number of files.

    program: description shown by --help.
    """
    parser = argparse.ArgumentParser(description=program, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in options:
        parser.add_argument(option, type=Path, required=True, nargs="*" if option == "--records" else None)
    return parser.parse_args()


@contextlib.contextmanager
def in_one_line(program: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an OSError (path and reason) and errors of these kinds (their text) into SystemExit."""
    try:
        yield
    except OSError as error:
        sys.exit(f"{program}: {error.filename or 'a file'}: {error.strerror or error}")
    except kinds as error:
        sys.exit(f"{program}: {error}")
