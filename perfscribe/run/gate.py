"""Holds back trainings on several processes until a self-test (experiment `preflight`) has passed.

A cell that waits for a test requires `preflight:<backend>:<processes>`, with `:<nodes>` appended for several nodes; the
plan adds this to cells of some chapters (plan/demands.py), others may name it themselves (distributed/needs.py). Before
a job measures such a cell, a recent pass on this node and hardware suffices; over several nodes it must be of the same
job. Otherwise the test runs now, on the job's nodes, and serves the whole run. Its record goes into the journal of
`preflight`. If `preflight` is not planned, nothing is held back.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscribe.base import error_kinds, files
from perfscribe.distributed import hosts
from perfscribe.distributed.needs import of_ranks
from perfscribe.distributed.self_test import NO_FIGURE, PASSED, prefix
from perfscribe.plan import capabilities
from perfscribe.plan.capabilities import Shortfall
from perfscribe.plan.demands import SELF_TEST, Demand, demands
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import form, journal, machine
from perfscribe.run.shard import Shard, Task

HELD_BACK = "skipped"  # status
VALID_S = 1800.0  # validity of a passed test on its node

Measure = Callable[[Shard, Task], None]


def journal_file(experiment: str, shard: int) -> str:
    """Name of the journal file for self-tests made by a job of this experiment."""
    return f"before-{experiment}-{shard}.jsonl"


def complaint(record: Mapping[str, Any]) -> str:
    """Problem in a row of a records file: a failed self-test, or a cell that one held back; else ""."""
    if record["experiment"] == SELF_TEST:
        return refusal(record) if record["status"] in form.RAN else ""
    held_back = record["provenance"].get("error", {}).get("kind") == error_kinds.HELD_BACK
    return record["reason"] if held_back else ""


def refusal(record: Mapping[str, Any]) -> str:
    """Reason why a self-test's record holds cells back; "" if it passed."""
    if record["status"] != "ok":
        message = record["provenance"].get("error", {}).get("message", record["reason"])
        return f"{prefix(NO_FIGURE)}no figure: {message}"
    return "" if record["values"]["exit_code"] == PASSED else str(record["values"]["line"])


class Gate:
    """Decides for one job whether cells may start; measure: makes a self-test and keeps its record."""

    def __init__(self, root: Path, site_folder: Path, measure: Measure) -> None:
        self.root, self.site_folder, self.measure = root, site_folder, measure
        self._answers: dict[Demand, str] = {}

    def shortfall(self, requires: Iterable[str]) -> Shortfall | None:
        """Return why a cell cannot run here or is held back; None if it can start."""
        requires = tuple(requires)
        lacking = capabilities.shortfall(requires)
        if lacking is not None:
            return lacking
        for demand in demands(requires):
            if demand not in self._answers:
                self._answers[demand] = self._ask(demand)
            if self._answers[demand]:
                return Shortfall(HELD_BACK, self._answers[demand], error_kinds.HELD_BACK)
        return None

    def _ask(self, demand: Demand) -> str:
        """Reason why trainings that wait for this test are held back; "" if they may start."""
        plan_files = sorted((self.site_folder / "plan").glob(f"measure-{SELF_TEST}-*.json"))
        if not plan_files:
            return ""
        # On a cluster, backends with different needs are in separate shards.
        shards = [Shard(path, self.root) for path in plan_files]
        planned = _task(shards, demand)
        if planned is None:
            return f"{prefix(NO_FIGURE)}no self-test of {demand.backend} is planned (experiments.{SELF_TEST}.backend)"
        shard, task = planned
        record = self._recent(shard, task)
        if record is None:
            self.measure(shard, task)
            record = journal.read(shard.folder).newest(task.slot)
        return refusal(record) if record else f"{prefix(NO_FIGURE)}the self-test left no record"

    def _recent(self, shard: Shard, task: Task) -> dict[str, Any] | None:
        """Newest record of the test on this node and hardware, if of this run or a recent pass; else None."""
        record = journal.read(shard.folder).newest(task.slot)
        if record is None or record["provenance"].get("node") != platform.node():
            return None
        if task.cell["factors"].get("nodes", 1) > 1 and not _of_these_nodes(record):
            return None
        tested_s = datetime.datetime.fromisoformat(record["provenance"]["time"]).timestamp()
        of_this_run = tested_s >= float(shard.run_clock.get("started", float("inf")))
        still_valid = not refusal(record) and time.time() - tested_s < VALID_S
        if not (of_this_run or still_valid) or not self._same_hardware(record["environment"]):
            return None
        return record

    def _same_hardware(self, environment_id: str) -> bool:
        then = files.read_object(self.site_folder / "environments" / f"{environment_id}.json")
        return {**then, "libraries": {}} == machine.identity(())


def _of_these_nodes(record: Mapping[str, Any]) -> bool:
    """Return whether this job made the test, on nodes it still has: a requeued job keeps its number."""
    now = {name.split(".")[0] for name in hosts.of_job(os.environ)}
    then = {name.split(".")[0] for name in str(record["values"].get("nodes", "")).split(", ") if name}
    return record["provenance"].get("slurm_job_id") == os.environ.get("SLURM_JOB_ID") and then <= now


def _task(shards: Iterable[Shard], demand: Demand) -> tuple[Shard, Task] | None:
    """Find the planned test and its shard, else adapt a test of the same backend to these processes."""
    tests = [(shard, task) for shard in shards for task in shard.tasks]
    same = [(shard, task) for shard, task in tests if task.cell["factors"]["backend"] == demand.backend]
    if not same:
        return None
    placed = demand.world_size, demand.nodes
    shard, task = min(same, key=lambda pair: (_placed(pair[1]) != placed, bool(pair[1].cell["skip"])))
    factors = {**task.cell["factors"], "nodes": demand.nodes, "world_size": demand.world_size}
    requires = list(of_ranks(factors["device"], *placed))
    key = cell_key(SELF_TEST, factors, shard.plan["fingerprint"], task.data_digest, shard.plan["seed"])
    return shard, replace(task, cell={**task.cell, "factors": factors, "requires": requires, "skip": ""}, key=key)


def _placed(task: Task) -> tuple[int, int]:
    """Processes in all, and nodes."""
    factors = task.cell["factors"]
    return factors["world_size"], factors.get("nodes", 1)
