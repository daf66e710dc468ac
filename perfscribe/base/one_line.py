"""Ends a program with one line for errors caused by a file, a disk or the config."""

import argparse
import contextlib
import re
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


def why(error: OSError) -> str:
    """Return the reason of an OSError in words, also of NumPy's for a write that fell short, which has no errno."""
    fell_short = error.errno is None and re.search(r"\d+ requested and \d+ written", str(error))
    return error.strerror or f"{error}{' (No space left on device?)' if fell_short else ''}"


@contextlib.contextmanager
def in_one_line(program: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an OSError (path and reason) and errors of these kinds (their text) into SystemExit."""
    try:
        yield
    except OSError as error:
        sys.exit(f"{program}: {error.filename or 'a file'}: {why(error)}")
    except kinds as error:
        sys.exit(f"{program}: {error}")
