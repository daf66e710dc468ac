"""Errors that a file, a disk or a config causes end a program with one line."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Of a verb's words: says what is wrong with them in one line."""

    def error(self, message: str) -> NoReturn:
        """SystemExit with the line."""
        sys.exit(f"run: {self.prog.removeprefix('./run ')}: {message} ({self.prog} --help)")


def paths(program: str | None, *options: str) -> argparse.Namespace:
    """What a script is called with: a path for each of these options, files of records for --records.

    program: what it does, for --help.
    """
    parser = argparse.ArgumentParser(description=program, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in options:
        parser.add_argument(option, type=Path, required=True, nargs="*" if option == "--records" else None)
    return parser.parse_args()


@contextlib.contextmanager
def in_one_line(program: str, *kinds: type[Exception]) -> Iterator[None]:
    """SystemExit with path and reason for an OSError, with the text of the error for these kinds."""
    try:
        yield
    except OSError as error:
        sys.exit(f"{program}: {error.filename or 'a file'}: {error.strerror or error}")
    except kinds as error:
        sys.exit(f"{program}: {error}")
