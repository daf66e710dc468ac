"""Holds back trainings on several processes until a self-test (experiment `preflight`) has passed.

A cell that waits for a test requires `preflight:<backend>:<processes>`, with `:<nodes>` appended for several nodes; the
plan adds this to cells of some chapters (plan/demands.py), others may name it themselves (distributed/needs.py). Before
a job measures such a cell, it runs the test on its own nodes; a recent pass on the same ones suffices. If `preflight`
is not planned, nothing is held back.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfscribe.base import error_kinds, files
from perfscribe.distributed import hosts
from perfscribe.distributed.self_test import NO_FIGURE, PASSED, prefix
from perfscribe.plan import capabilities
from perfscribe.plan.capabilities import Shortfall
from perfscribe.plan.demands import SELF_TEST, Demand, demands
from perfscribe.records import form, machine
from perfscribe.run.shard import Shard

HELD_BACK = "skipped"  # status
VALID_S = 1800.0  # validity of a passed test

Measure = Callable[[Shard, Mapping[str, Any]], Mapping[str, Any]]


def complaint(record: Mapping[str, Any]) -> str:
    """Problem in a row of a records file: a failed self-test, or a cell that one held back; else ""."""
    error = record["provenance"].get("error", {})
    if record["experiment"] == SELF_TEST and record["status"] in form.RAN:
        return _refusal(record["status"], error.get("message", record["reason"]), record["values"])
    return record["reason"] if error.get("kind") == error_kinds.HELD_BACK else ""


def _refusal(status: str, message: str, values: Mapping[str, Any]) -> str:
    """Reason why a self-test holds cells back; "" if it passed."""
    if status != "ok":
        return f"{prefix(NO_FIGURE)}no figure: {message}"
    return "" if values["exit_code"] == PASSED else str(values["line"])


class Gate:
    """Decides for one job whether cells may start; measure: runs a cell of `preflight`, returns the child's answer."""

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
        shards = [Shard(path, self.root) for path in plan_files]
        planned = ((shard, cell) for shard in shards for cell in shard.plan["cells"])
        same = next((pair for pair in planned if pair[1]["factors"]["backend"] == demand.backend), None)
        if same is None:
            why = f"no self-test of {demand.backend} is planned (experiments.{SELF_TEST}.backend)"
            return f"{prefix(NO_FIGURE)}{why}" if shards else ""
        shard, cell = same  # of one backend, tests differ only in their ranks
        factors = {**cell["factors"], "nodes": demand.nodes, "world_size": demand.world_size}
        passed = self.root / ".perfscribe" / "self_tests" / _digest(shard.plan["fingerprint"], factors)
        if passed.is_file() and time.time() - passed.stat().st_mtime < VALID_S:
            return ""
        answer = self.measure(shard, {**cell, "factors": factors, "skip": ""})
        message = answer.get("error", {}).get("message", answer["reason"])
        refusal = _refusal(answer["status"], message, answer.get("measurement", {}).get("values", {}))
        if not refusal:
            files.write_text(passed, "")
        return refusal


def _digest(code: str, factors: Mapping[str, Any]) -> str:
    """Digest of a test and of the machine or, over several nodes, the job that makes it, as its nodes may differ."""
    job = [os.environ.get("SLURM_JOB_ID"), hosts.of_job(os.environ)] if factors["nodes"] > 1 else []
    return machine.identity_id({"test": [code, factors], "of": [platform.node(), machine.identity(()), job]})
