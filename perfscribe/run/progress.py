"""Progress of a run, read from the journals, so that it includes jobs on other machines.

On a terminal one live line, elsewhere one line per finished cell. Each cause of failure is printed once in both.
"""

import functools
import logging
import os
import re
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from perfscribe.base import error_kinds, files
from perfscribe.plan.plan import Plan
from perfscribe.records import journal
from perfscribe.run import processes
from perfscribe.run.estimate import Due, Estimate, due
from perfscribe.run.shard import Shard

POLL_S = 0.5
BAR = 20  # characters
WELL = ("ok", "oom")  # statuses that are a result of the cell
AGAIN = ("failed", "timeout")


def headline(record: Mapping[str, Any]) -> str:
    """First figure of a record in a few characters, or its status and reason."""
    if record["status"] != "ok":
        return textwrap.shorten(f"{record['status']} {record['reason']}", 70, placeholder=" …")
    for name, samples in record["samples"].items():
        if samples:
            return f"{name} {median(samples):.3g}"
    for name, level in record["values"].items():
        return f"{name} {level:.3g}" if isinstance(level, float) else f"{name} {level}"
    return "ok"


def duration(seconds: float) -> str:
    """Format seconds as s, min or h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Tail:
    """New complete lines of a growing file."""

    def __init__(self, path: Path) -> None:
        # Start after the last complete line: a torn one is cut off before the next is written.
        self.path = path
        self.position = path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0

    def lines(self) -> Iterator[bytes]:
        """Yield lines completed since the last call."""
        if not self.path.is_file():
            return
        with open(self.path, "rb") as stream:
            stream.seek(self.position)
            content = stream.read()
        end = content.rfind(b"\n") + 1
        self.position += end
        yield from content[:end].split(b"\n")[:-1]


def _cell_of(experiment: str, factors: Mapping[str, Any], number: int) -> tuple[str, str, int]:
    return experiment, files.canonical(dict(factors)), number


class Watcher:
    """Thread that prints progress until it is stopped."""

    def __init__(self, root: Path, plan: Plan, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.live = processes.redraws(self.out)
        results = root / "results" / plan.site
        shards = [(experiment, shard) for experiment, count in plan.shards.items() for shard in range(count)]
        self.tails = [Tail(results / "journal" / experiment / f"{shard}.jsonl") for experiment, shard in shards]
        self.plan, self.root = plan, root
        # Cells without a record, each with its shard; None if this machine lacks something that the cell needs.
        self.left: dict[tuple[str, str, int], tuple[Due, int | None]] = {}
        self.levels: dict[str, dict[str, set[str]]] = {}  # of an experiment's cells, by factor
        self.estimate = Estimate(root, plan.preset)
        self.ended: Counter[str] = Counter()  # cells of this run by status
        # By status and reason: headline of the first cell, and number of cells by experiment.
        self.causes: dict[tuple[str, str], tuple[str, Counter[str]]] = {}
        self.cells: set[tuple[str, str, int]] = set()
        self.results = results
        self.waiting: dict[str, list[str]] = {}  # units by name, with their data sets that are not made yet
        for experiment, shard in shards:
            self._enter(f"measure-{experiment}-{shard}")
        self.total = len(self.cells)
        self.last, self.count = "", self._count()  # texts of the live line
        self.lock = threading.RLock()  # for output
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _is_up_to_date(self, dataset: str) -> bool | None:
        """Return whether a data set is up to date: None if missing, False if due again."""
        plan, digest = (self.results / folder for folder in (f"plan/data-{dataset}.json", f"data/{dataset}.digest"))
        try:
            return digest.stat().st_mtime_ns >= plan.stat().st_mtime_ns
        except OSError:
            return None

    def _enter(self, unit: str) -> None:
        """Register a shard's cells; those that have a record are done.

        For a cell with a missing data set, records made with any version of it count; with one due again, none. The
        shard is entered again when the data set is made.
        """
        shard = Shard(self.results / "plan" / f"{unit}.json", self.root)
        history = journal.read(shard.folder)
        experiment = shard.plan["experiment"]
        up_to_date = {name: self._is_up_to_date(name) for name in shard.plan["datasets"]}
        self.waiting[unit] = [name for name, known in up_to_date.items() if not known]
        for task in shard.tasks:
            if task.cell["skip"]:
                continue
            cell = _cell_of(experiment, task.cell["factors"], task.round)
            self.cells.add(cell)
            timed = due(experiment, task.cell["factors"], task.cell["cost"])
            here = self.plan.cluster is not None or shard.lacking(task) is None  # cluster nodes differ
            self.left[cell] = timed, shard.plan["shard"] if here else None
            for record in history.of_cell(task.cell["factors"], task.round)[-1:]:
                self.estimate.add(timed, record["spent"])
            levels = self.levels.setdefault(experiment, {})
            for name, level in {**task.cell["factors"], "round": task.round}.items():
                levels.setdefault(name, set()).add(str(level))
            due_again = any(up_to_date.get(name) is False for name in task.cell["data"])
            if not due_again and shard.standing(task, history, None) is not None:
                del self.left[cell]
        left = [cell for cell, where in self.left.values() if cell.experiment == experiment and where is not None]
        self.estimate.look_elsewhere(experiment, left)

    def seconds_left(self) -> float | None:
        """Return s until the cells left that can run here are done; None if the time of one of them is unknown."""
        jobs: defaultdict[tuple[str, int], list[Due]] = defaultdict(list)
        for cell, shard in self.left.values():
            if shard is not None:
                jobs[cell.experiment, shard].append(cell)
        seconds = {job: job_s for job, cells in jobs.items() if (job_s := self.estimate.job_s(cells)) is not None}
        return self.plan.span_s(seconds) if len(seconds) == len(jobs) else None

    def start(self) -> None:
        """Start the thread and let Snakemake's log handlers share its lock."""
        if not self.total:
            return
        for handler in logging.getLogger("snakemake.logging").handlers if self.live else ():
            if getattr(handler, "stream", None) in (sys.stderr, sys.stdout):
                handler.lock = self.lock
                handler.emit = functools.partial(self._emit, handler.emit)  # type: ignore[method-assign]
        self._thread.start()

    def stop(self, budget_spent: bool = False) -> None:
        """Stop the thread; print the last events, a summary, and how many cells a spent time budget left."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._tell()
        site_option = "" if self.plan.site == "local" else f" --config site={self.plan.site}"
        if self.ended:
            statuses = ", ".join(f"{cells} {status}" for status, cells in self.ended.items())
            self._say(f"{self.total - len(self.left)}/{self.total} cells: {statuses}")
        for cause, by_experiment in self.causes.values():
            if by_experiment.total() > 1:
                self._say(f"{by_experiment.total()} cells of {', '.join(by_experiment)}: {cause}")
        for status in AGAIN:
            failed = sum((cells for (ended, _), (_, cells) in self.causes.items() if ended == status), Counter[str]())
            if failed:
                counts = ", ".join(f"{cells} of {experiment}" for experiment, cells in failed.items())
                name = "EXPERIMENT" if len(failed) > 1 else "".join(failed)
                again = f"./run remeasure {name} status={status}{site_option}"
                self._say(f"{status}: {counts}; to measure again: {again}, then ./run report{site_option}")
        if budget_spent and self.left:
            self._say(f"time budget spent: {len(self.left)} cells not run; the next ./run report goes on")

    def _run(self) -> None:
        self._draw()
        while not self._stop.wait(POLL_S):
            self._tell()
            self._draw()

    def _tell(self) -> None:
        for unit, datasets in list(self.waiting.items()):
            if datasets and all(map(self._is_up_to_date, datasets)):
                self._enter(unit)
        for tail in self.tails:
            for line in tail.lines():
                try:
                    event = journal.parse(line)
                except ValueError:
                    continue
                if event["event"] == "record":
                    cell = _cell_of(event["experiment"], event["factors"], event["round"])
                    if cell in self.left:
                        self.estimate.add(self.left.pop(cell)[0], event["spent"])
                        self._print(event)
                elif event["event"] == "waiting":
                    self._say(f"{event['experiment']} {event['what']}")

    def _write(self, text: str) -> None:
        with self.lock:
            self.out.write(f"{processes.CLEAR}{text}" if self.live else text)
            self.out.flush()

    def _say(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def _emit(self, emit: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
        """Erase the live line before Snakemake writes; its handler holds the lock."""
        self._write("")
        emit(record)

    def _draw(self) -> None:
        """Draw the live line and return the cursor to its beginning."""
        if self.live and (self.left or self.ended):
            done = BAR * (self.total - len(self.left)) // self.total
            now = self.last if self.left else "tables, figures, report"
            text = f"{time.strftime('%H:%M:%S')} [{'#' * done:.<{BAR}}] {self.count} {now}"
            columns = os.get_terminal_size(self.out.fileno()).columns or 80
            self._write(f"{text[: columns - 1]}\r")

    def _count(self) -> str:
        seconds = self.seconds_left()
        left = f", {duration(seconds)} left" if seconds is not None and self.left else ""
        return f"{self.total - len(self.left)}/{self.total}{left}"

    def _print(self, record: Mapping[str, Any]) -> None:
        """Show a finished cell in the live line or, without one, in its own; a cause of failure in its own, once."""
        experiment, status, text = record["experiment"], record["status"], headline(record)
        self.ended[status] += 1
        levels = self.levels.get(experiment, {})
        named = {**record["factors"], "round": record["round"]}
        varying = [name for name in named if len(levels.get(name, ())) > 1 and name != "code"]  # code: a digest
        where = " ".join([experiment, *(f"{name}={named[name]}" for name in varying)])
        self.last, self.count = f"{where}: {text}", self._count()
        silent = self.live
        if status not in WELL and record["provenance"].get("error", {}).get("kind") != error_kinds.EXPECTED:
            # Numbers in messages differ between cells.
            reason = re.sub(r"\d+", "0", record["reason"]) if status in AGAIN else record["reason"]
            _, by_experiment = self.causes.setdefault((status, reason), (text, Counter()))
            silent = bool(by_experiment)
            by_experiment[experiment] += 1
        if not silent:
            self._say(f"{self.last} ({self.count})")
