"""Runs Snakemake and prints errors that `--quiet all` hides, in few lines: python -m perfscribe.run.engine ARGUMENTS.

Of a failed job Snakemake itself prints 60 lines, or 14 under `--quiet rules progress`, neither with the end of its log.
"""

import contextlib
import io
import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any

from perfscribe.base.one_line import why
from perfscribe.run import processes

LONGEST = 300  # characters per line
TAIL = 20  # lines of a failed job's log


def one_line(message: str) -> str:
    """Join a message into one line, without traceback lines, shortened to LONGEST."""
    lines = [line for line in message.splitlines() if not re.match(r'\s+File "|Traceback| {4}', line)]
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def end_of(log: str) -> str:
    """Last lines of a failed job's log and its path."""
    path = Path(log)
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    return "\n".join([*(lines[-TAIL:] or ["it was killed, or the disk is full"]), f"log: {log}"])


class Errors(logging.Filter):
    """Prints the end of each failed job's log; keeps the texts of other errors; lets every record pass."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._failed: set[int] = set()  # Snakemake repeats them in the end

    def filter(self, record: logging.LogRecord) -> bool:
        """Read a record of Snakemake's."""
        job, text = vars(record), record.getMessage()
        kind = job.get("exception") or "RuleException"
        if job.get("event") == "job_error" and job["jobid"] not in self._failed:
            self._failed.add(job["jobid"])
            processes.say("\n".join(map(end_of, job["log"])))
        elif kind != "RuleException" and "job did not complete" not in text:
            self.texts.append(one_line(text))
        return True


def refuse_unknown(cli: Any) -> None:
    """Exit with the last line of what Snakemake says of its arguments; the other 120 are its options."""
    with contextlib.redirect_stderr(io.StringIO()) as usage:
        try:
            cli.parse_args(sys.argv[1:])
        except SystemExit as end:
            if end.code:
                print(f"run: {usage.getvalue().splitlines()[-1].partition('error: ')[2]}", file=sys.__stderr__)
            raise


def main() -> None:
    """Run Snakemake's command line in this process."""
    errors = Errors()
    if "--quiet" in sys.argv:
        logging.getLogger("snakemake.logging").addFilter(errors)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # run/stopping.py blocked it
        from snakemake import cli  # its plugins call programs

        refuse_unknown(cli)
        cli.main()
    except SystemExit as end:
        if end.code and not isinstance(end.code, str) and errors.texts:
            print(f"run: {errors.texts[0]}", file=sys.stderr, flush=True)
        raise
    except KeyboardInterrupt:  # while modules are imported or the workflow is read
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        sys.exit(f"run: {error.filename or 'a file'}: {why(error)}")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):  # it would raise, with a traceback, while Python ends
                signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
