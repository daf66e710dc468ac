"""What holds trainings on several processes back: the self-test of experiment `preflight`, made before they start.

A cell that waits for a test requires `preflight:<backend>:<processes>`; the plan adds that to the cells of the chapters
below, others may name it themselves (parallel/needs.py). Where a job is about to measure one, the test's newest record
decides, if it passed on this node and hardware a short while ago; else the test is made now. So it is of the very node
that the job was given, and one test serves a whole run. Its record goes into the journal of `preflight`, which shows
it. Where `preflight` is not planned, nothing is held back.
"""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscribe import environment, files, journal
from perfscribe.cells import Cell
from perfscribe.parallel.needs import self_tested
from perfscribe.parallel.self_test import NO_FIGURE, PASSED, prefix
from perfscribe.plan_cells import cell_key
from perfscribe.shard import Shard, Task

EXPERIMENT = "preflight"
HELD_BACK = "skipped"
CHAPTERS = ("fsdp",)  # whose experiments train; in the others, links are what is measured
BACKENDS = ("gloo", "nccl")
VALID_S = 1800.0  # how long a test that passed speaks for its node
REQUIREMENT = re.compile(r"preflight:(gloo|nccl):([1-9]\d*)")
_REASON = re.compile(prefix(0).replace("0", r"[1-9]\d*"))

Measure = Callable[[Shard, Task], None]


def demands(requires: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Backend and number of processes of each self-test that a cell waits for."""
    for name in requires:
        found = REQUIREMENT.fullmatch(name)
        if found:
            yield found[1], int(found[2])


def waiting(cell: Cell, experiment: str, chapters: Iterable[str]) -> Cell:
    """The cell as it is planned: where it trains on several processes, with the self-test that it waits for."""
    backend, world_size = cell.factors.get("backend"), cell.factors.get("world_size")
    trains = experiment != EXPERIMENT and bool(set(chapters) & set(CHAPTERS))
    if not trains or backend not in BACKENDS or not isinstance(world_size, int) or any(demands(cell.requires)):
        return cell
    return replace(cell, requires=(*cell.requires, *self_tested(str(backend), world_size)))


def journal_file(experiment: str, shard: int) -> str:
    """Name of the journal file for the self-tests that a job of this experiment makes."""
    return f"before-{experiment}-{shard}.jsonl"


def is_gated(cells: Iterable[Any]) -> bool:
    """Whether any of the cells waits for a self-test."""
    return any(True for cell in cells for _ in demands(cell.requires))


def complaint(record: Mapping[str, Any]) -> str:
    """What is wrong by a row of a records file: a self-test that failed, or a cell that one held back; else empty."""
    if record["experiment"] == EXPERIMENT:
        return refusal(record) if record["status"] not in ("skipped", "unsupported", "not_run") else ""
    held_back = record["status"] == HELD_BACK and _REASON.match(record["reason"])
    return record["reason"] if held_back else ""


def refusal(record: Mapping[str, Any]) -> str:
    """Why cells are held back by a self-test's record; empty where it passed."""
    if record["status"] != "ok":
        reason = re.sub(r"^\w+: ", "", record["reason"])
        return f"{prefix(NO_FIGURE)}no figure: {reason}"
    return "" if record["values"]["exit_code"] == PASSED else str(record["values"]["line"])


class Gate:
    """Answers for one job whether cells may start; measure: makes a self-test and keeps its record."""

    def __init__(self, root: Path, site_folder: Path, measure: Measure) -> None:
        self.root, self.site_folder, self.measure = root, site_folder, measure
        self._answers: dict[tuple[str, int], str] = {}

    def shortfall(self, requires: Iterable[str]) -> tuple[str, str] | None:
        """Status and reason of a cell that cannot run here, or is held back; None where nothing is in its way."""
        requires = tuple(requires)
        lacking = environment.shortfall(requires)
        if lacking is not None:
            return lacking
        for demand in demands(requires):
            if demand not in self._answers:
                self._answers[demand] = self._ask(*demand)
            if self._answers[demand]:
                return HELD_BACK, self._answers[demand]
        return None

    def _ask(self, backend: str, world_size: int) -> str:
        """Why trainings on so many processes are held back; empty where they are not."""
        plan_files = sorted((self.site_folder / "plan").glob(f"measure-{EXPERIMENT}-*.json"))
        if not plan_files:
            return ""
        # Backends that need unlike things are in shards of their own on a cluster.
        shards = [Shard(path, self.root, self.site_folder) for path in plan_files]
        found = _task(shards, backend, world_size)
        if found is None:
            return f"{prefix(NO_FIGURE)}no self-test of {backend} is planned (experiments.{EXPERIMENT}.backend)"
        shard, task = found
        record = self._recent(shard, task)
        if record is None:
            self.measure(shard, task)
            record = journal.read(shard.folder).latest(task.slot)
        return refusal(record) if record else f"{prefix(NO_FIGURE)}the self-test left no record"

    def _recent(self, shard: Shard, task: Task) -> dict[str, Any] | None:
        """The newest record of the test, where it is of this run or passed not long ago, on this node and hardware."""
        record = journal.read(shard.folder).latest(task.slot)
        if record is None or record["provenance"].get("node") != platform.node():
            return None
        made = _seconds(record)
        of_this_run = made >= float(shard.run_clock.get("started", float("inf")))
        still_valid = not refusal(record) and _now() - made < VALID_S
        if not (of_this_run or still_valid) or not self._same_hardware(record["environment"]):
            return None
        return record

    def _same_hardware(self, environment_id: str) -> bool:
        path = self.site_folder / "environments" / f"{environment_id}.json"
        then, now = (files.read_json(path) if path.is_file() else {}), environment.identity(())
        return bool(then) and {**then, "libraries": {}} == {**now, "libraries": {}}


def _task(shards: Iterable[Shard], backend: str, world_size: int) -> tuple[Shard, Task] | None:
    """The planned test and its shard, or one of the same backend on another number of processes made to this one."""
    same = [(shard, task) for shard in shards for task in shard.tasks if task.cell["factors"]["backend"] == backend]
    if not same:
        return None
    shard, task = min(same, key=lambda one: (one[1].cell["factors"]["world_size"] != world_size, _is_left_out(one[1])))
    factors = {**task.cell["factors"], "world_size": world_size}
    requires = [f"cuda:{world_size}"] if factors["device"] == "cuda" else []
    key = cell_key(EXPERIMENT, factors, shard.plan["fingerprint"], task.data_digest, shard.plan["seed"])
    return shard, replace(task, cell={**task.cell, "factors": factors, "requires": requires, "skip": ""}, key=key)


def _is_left_out(task: Task) -> bool:
    """Whether the preset leaves the cell out."""
    return bool(task.cell["skip"])


def _seconds(record: Mapping[str, Any]) -> float:
    """When a record was made, in s since the epoch."""
    return datetime.datetime.fromisoformat(record["provenance"]["time"]).timestamp()


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()
