"""Progress: one line a finished cell, read from the journals, so that jobs on other machines are told too."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from perfscribe.base import files
from perfscribe.plan.demands import SELF_TEST
from perfscribe.plan.plan import Plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal
from perfscribe.run import gate
from perfscribe.run.shard import Shard

POLL_S = 0.5
MOST_GROWTH = 3
# What a cell's reason ends in whose failure is the homework's own answer.
ANSWER = "the feature number of src and tgt must be equal to d_model"


def headline(record: Mapping[str, Any]) -> str:
    """A record's figure in a few characters, or its status and reason."""
    if record["status"] != "ok":
        return textwrap.shorten(f"{record['status']} {record['reason']}", 70, placeholder=" …")
    for name, samples in record["samples"].items():
        if samples:
            return f"{name} {median(samples):.3g}"
    for name, level in record["values"].items():
        return f"{name} {level:.3g}" if isinstance(level, float) else f"{name} {level}"
    return "ok"


def duration(seconds: float) -> str:
    """Seconds as text that a person reads at a glance."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Tail:
    """New whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        # From behind the last whole line: a torn one is cut off before the next is written.
        self.path = path
        self.position = path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0

    def lines(self) -> Iterator[bytes]:
        """Lines that were completed since the last call."""
        if not self.path.is_file():
            return
        with open(self.path, "rb") as stream:
            stream.seek(self.position)
            content = stream.read()
        end = content.rfind(b"\n") + 1
        self.position += end
        yield from content[:end].split(b"\n")[:-1]


@dataclass
class Pace:
    """How long an experiment's cells take: what the quickest took, and what came on top of that by cost.

    No longer than MOST_GROWTH times the longest so far: early cells mostly compile, which does not grow with cost.
    """

    quickest_s: float = float("inf")
    longest_s: float = 0.0
    cells: int = 0
    wall_s: float = 0.0
    cost: float = 0.0

    def add(self, wall_s: float, cost: float) -> None:
        """Count a finished cell."""
        self.quickest_s, self.longest_s = min(self.quickest_s, wall_s), max(self.longest_s, wall_s)
        self.cells, self.wall_s, self.cost = self.cells + 1, self.wall_s + wall_s, self.cost + cost

    def expected_s(self, cost: float) -> float:
        """Expected time of a cell of this cost."""
        beyond_s = self.wall_s - self.cells * self.quickest_s
        by_cost_s = self.quickest_s + (beyond_s * cost / self.cost if self.cost > 0 else 0.0)
        return min(by_cost_s, MOST_GROWTH * self.longest_s)


def _cell_of(experiment: str, factors: Mapping[str, Any], number: int) -> tuple[str, str, int]:
    return experiment, files.canonical(dict(factors)), number


class Watcher:
    """A thread that tells progress until it is stopped."""

    def __init__(self, root: Path, plan: Plan, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        results = root / "results" / plan.site
        shards = [(experiment, shard) for experiment, count in plan.shards.items() for shard in range(count)]
        self.tails = [Tail(results / "journal" / experiment / f"{shard}.jsonl") for experiment, shard in shards]
        self.tails += [
            Tail(results / "journal" / SELF_TEST / gate.journal_file(experiment, shard))
            for experiment, shard in shards
            if experiment in plan.gated
        ]
        self.plan, self.root = plan, root
        self.left: dict[tuple[str, str, int], tuple[float, int]] = {}  # cost and shard of cells without a record
        self.levels: dict[str, dict[str, set[str]]] = {}  # of an experiment's cells, by factor
        self.pace: dict[str, Pace] = {}
        self.failed: Counter[tuple[str, str]] = Counter()  # by experiment and status
        self.cells: set[tuple[str, str, int]] = set()
        self.results = results
        self.waiting: dict[str, list[str]] = {}  # units whose data sets are not made yet, and these
        for experiment, shard in shards:
            self._enter(f"measure-{experiment}-{shard}")
        self.total = len(self.cells)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _made(self, dataset: str) -> bool | None:
        """Whether a data set is as planned; None where there is none, False where it is to be made anew."""
        plan, digest = (self.results / folder for folder in (f"plan/data-{dataset}.json", f"data/{dataset}.digest"))
        try:
            return digest.stat().st_mtime_ns >= plan.stat().st_mtime_ns
        except OSError:
            return None

    def _enter(self, unit: str) -> None:
        """Count a shard's cells in; those that have a record already are done.

        Without a data set those that were measured on any; if it is made anew, none. Once it is made, the shard is
        entered again.
        """
        shard = Shard(self.results / "plan" / f"{unit}.json", self.root)
        history = journal.read(shard.folder)
        experiment, code, seed = (shard.plan[name] for name in ("experiment", "fingerprint", "seed"))
        of_own_data = {
            _cell_of(experiment, found["factors"], found["round"]): found
            for found in history.all_records()
            if found["key"] == cell_key(experiment, found["factors"], code, found["data_digest"], seed)
        }
        made = {name: self._made(name) for name in shard.plan["datasets"]}
        self.waiting[unit] = [name for name, known in made.items() if not known]
        for task in shard.tasks:
            if task.cell["skip"]:
                continue
            cell = _cell_of(experiment, task.cell["factors"], task.round)
            self.cells.add(cell)
            self.left[cell] = task.cell["cost"], shard.plan["shard"]
            levels = self.levels.setdefault(experiment, {})
            for name, level in {**task.cell["factors"], "round": task.round}.items():
                levels.setdefault(name, set()).add(str(level))
            of_these = {made.get(name) for name in task.cell["data"]}
            known = history.newest(task.slot)
            if known is None and None in of_these and False not in of_these:
                known = of_own_data.get(cell)
            if known is not None and False not in of_these:
                self._finish(cell, known["spent"].get("wall_s", 0.0))

    def _finish(self, cell: tuple[str, str, int], wall_s: float) -> bool:
        if cell not in self.left:
            return False
        cost, _ = self.left.pop(cell)
        self.pace.setdefault(cell[0], Pace()).add(wall_s, cost)
        return True

    def seconds_left(self) -> float | None:
        """Expected time of what is left, from cells of the same experiment; None where none is done yet."""
        if any(experiment not in self.pace for experiment, _, _ in self.left):
            return None
        seconds: dict[tuple[str, int], float] = defaultdict(float)
        for (experiment, _, _), (cost, shard) in self.left.items():
            seconds[experiment, shard] += self.pace[experiment].expected_s(cost)
        return self.plan.span_s(seconds)

    def start(self) -> None:
        """Begin."""
        if self.total:
            self._thread.start()

    def stop(self, budget_spent: bool = False) -> None:
        """Tell what came last and what a spent time budget left, then end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._tell()
        for (experiment, status), cells in self.failed.items():
            own = "" if self.plan.site == "local" else f" --config site={self.plan.site}"
            again = f"./run remeasure {experiment} status={status}{own}"
            self._say(f"{experiment}: {cells} {status}; to measure again: {again}, then ./run report{own}")
        if budget_spent and self.left:
            self._say(f"time budget spent: {len(self.left)} cells not run; the next ./run report goes on")

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._tell()

    def _tell(self) -> None:
        for unit, datasets in list(self.waiting.items()):
            if datasets and all(map(self._made, datasets)):
                self._enter(unit)
        for tail in self.tails:
            for line in tail.lines():
                try:
                    event = journal.parse(line)
                except ValueError:
                    continue
                if event["event"] == "record":
                    cell = _cell_of(event["experiment"], event["factors"], event["round"])
                    if self._finish(cell, event["spent"].get("wall_s", 0.0)):
                        self._print(event)
                elif event["event"] == "waiting":
                    self._say(f"{event['experiment']} {event['what']}")

    def _say(self, text: str) -> None:
        self.out.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.out.flush()

    def _print(self, record: Mapping[str, Any]) -> None:
        levels = self.levels.get(record["experiment"], {})
        named = {**record["factors"], "round": record["round"]}
        varying = [name for name in named if len(levels.get(name, ())) > 1 and name != "code"]  # that is a digest
        seconds = self.seconds_left()
        left = f", {duration(seconds)} left" if seconds is not None and self.left else ""
        if record["status"] in ("failed", "timeout") and not record["reason"].endswith(ANSWER):
            self.failed[record["experiment"], record["status"]] += 1
        where = " ".join([record["experiment"], *(f"{name}={named[name]}" for name in varying)])
        self._say(f"{where}: {headline(record)} ({self.total - len(self.left)}/{self.total}{left})")
