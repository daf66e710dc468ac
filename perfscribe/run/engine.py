"""Runs Snakemake and prints one line for errors that `--quiet all` hides: python -m perfscribe.run.engine ARGUMENTS.

These are failures before or outside of the jobs.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
from typing import NoReturn

LONGEST = 300  # characters per line


def one_line(message: str) -> str:
    """Join a message into one line, without traceback lines, shortened to LONGEST."""
    lines = [line for line in message.splitlines() if not re.match(r'\s+File "|Traceback| {4}', line)]
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def wrong_words(_: argparse.ArgumentParser, message: str) -> NoReturn:
    """Exit with one line instead of Snakemake's usage of a hundred lines."""
    sys.exit(f"run: {message} (options are Snakemake's, and --config KEY=VALUE ...)")


def main() -> None:
    """Run Snakemake's command line in this process."""
    errors: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        """Keep texts of exceptions, which Snakemake's handlers may hide; let every record pass."""
        kind, text = getattr(record, "exception", ""), record.getMessage()
        # A failed job's shell has printed its error (rules/common.smk).
        if kind and kind != "RuleException" and "job did not complete" not in text:
            errors.append(one_line(text))
        return True

    logging.getLogger("snakemake.logging").addFilter(keep)
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during imports, which take a second
    try:
        from snakemake import cli  # its plugins call programs

        signal.signal(signal.SIGINT, handler)
        argparse.ArgumentParser.error = wrong_words  # type: ignore[method-assign, assignment]
        cli.main()
    except SystemExit as end:
        if end.code and not isinstance(end.code, str) and errors:
            print(f"run: {errors[0]}", file=sys.stderr, flush=True)
        raise
    except KeyboardInterrupt:  # before Snakemake handles it
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and re.fullmatch(r"[\w-]+", str(error.filename)):  # a program's name
            sys.exit(f"run: the program `{error.filename}` is missing: install it, as Snakemake needs it")
        sys.exit(f"run: {error.filename or 'a file'}: {error.strerror or error}")


if __name__ == "__main__":
    main()
