"""Progress: one line a finished cell, read from the journals, so that jobs on other machines are told too."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from perfscribe import files, journal
from perfscribe.plan import Plan

POLL_S = 0.5


def headline(record: Mapping[str, Any]) -> str:
    """A record's figure in a few characters, or its status and reason."""
    if record["status"] != "ok":
        return f"{record['status']} {record['reason']}".strip()[:70]
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
        self.path, self.position = path, path.stat().st_size if path.is_file() else 0

    def lines(self) -> Iterator[str]:
        """Lines that were completed since the last call."""
        if not self.path.is_file():
            return
        with open(self.path, "rb") as stream:
            stream.seek(self.position)
            content = stream.read()
        end = content.rfind(b"\n") + 1
        self.position += end
        yield from content[:end].decode("utf-8", "replace").splitlines()


class Watcher:
    """A thread that tells progress until it is stopped."""

    def __init__(self, root: Path, plan: Plan, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        results = root / "results" / plan.site
        self.tails = [
            Tail(results / "journal" / experiment / f"{shard}.jsonl")
            for experiment, shards in plan.shards.items()
            for shard in range(shards)
        ]
        self.cost_left = self._cost_by_cell(results / "plan", plan)
        self.total, self.done = len(self.cost_left), 0
        self.seconds_by_cost: dict[str, tuple[float, float]] = {}
        self._mark_done(results / "journal", plan)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @staticmethod
    def _cost_by_cell(folder: Path, plan: Plan) -> dict[tuple[str, str, int], float]:
        costs: dict[tuple[str, str, int], float] = {}
        for experiment, shards in plan.shards.items():
            for shard in range(shards):
                unit = files.read_json(folder / f"measure-{experiment}-{shard}.json")
                for cell in unit["cells"]:
                    for number in range(1, unit["rounds"] + 1) if not cell["skip"] else ():
                        costs[experiment, files.canonical(cell["factors"]), number] = float(cell["cost"])
        return costs

    def _mark_done(self, folder: Path, plan: Plan) -> None:
        for experiment in plan.shards:
            codes = {
                unit.get("fingerprint") for name, unit in plan.units.items() if unit.get("experiment") == experiment
            }
            for record in journal.read(folder / experiment).all_records():
                if record["fingerprint"] in codes:
                    self._finish(record)

    def _finish(self, record: Mapping[str, Any]) -> bool:
        cost = self.cost_left.pop((record["experiment"], files.canonical(record["factors"]), record["round"]), None)
        if cost is None:
            return False
        self.done += 1
        spent, done = self.seconds_by_cost.get(record["experiment"], (0.0, 0.0))
        self.seconds_by_cost[record["experiment"]] = (spent + record["spent"]["wall_s"], done + cost)
        return True

    def seconds_left(self) -> float | None:
        """Expected time of what is left, from cells of the same experiment; None where none is done yet."""
        left = 0.0
        for (experiment, _, _), cost in self.cost_left.items():
            spent, done = self.seconds_by_cost.get(experiment, (0.0, 0.0))
            if done <= 0:
                return None
            left += cost * spent / done
        return left

    def start(self) -> None:
        """Begin."""
        if self.total:
            self._thread.start()

    def stop(self) -> None:
        """Tell what came last, then end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._tell()

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._tell()

    def _tell(self) -> None:
        for tail in self.tails:
            for line in tail.lines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("event") == "record" and self._finish(event):
                    self._print(event)

    def _print(self, record: Mapping[str, Any]) -> None:
        factors = " ".join(f"{name}={level}" for name, level in record["factors"].items())
        seconds = self.seconds_left()
        left = f", {duration(seconds)} left" if seconds is not None and self.cost_left else ""
        clock = time.strftime("%H:%M:%S")
        shown = f"{record['experiment']} {factors}: {headline(record)}"
        self.out.write(f"{clock} {shown} ({self.done}/{self.total}{left})\n")
        self.out.flush()
