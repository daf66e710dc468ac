"""The worker: measures the cells of one shard that the journal lacks, and writes the shard's records.

Three processes (processes.py): the supervisor restarts a worker that a cell killed; the worker handles the journal,
time-outs and crashes; the child runs cells (child.py).
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from perfscribe.base import error_kinds, files, registry
from perfscribe.instruments import tools
from perfscribe.plan import cache, capabilities, cluster, subjects
from perfscribe.plan.fingerprint import Sources
from perfscribe.records import journal, machine, provenance, records
from perfscribe.records.disturbances import flags_of
from perfscribe.run import host_memory, leases, variables
from perfscribe.run.gate import Gate
from perfscribe.run.monitor import Monitor
from perfscribe.run.processes import STOP_SIGNALS, Child, ended, say
from perfscribe.run.shard import Shard, Task
from perfscribe.subjects import VARIABLE as SUBJECTS

MAX_STARTS = 2


class Interrupted(BaseException):
    """Raised by a stop signal; args[0] is its number."""


class Worker:
    """Runs a shard's cells in a child."""

    def __init__(self, shard: Shard, book: journal.Journal) -> None:
        self.shard, self.book = shard, book
        together = shard.options["at_a_time"] > 1
        self.lease = leases.for_shard(shard.plan, shard.site_folder / "plan", together, self._say_waiting)
        shard.shortfall = Gate(shard.root, shard.site_folder, self._self_test).shortfall
        tools.use(shard.options["tools"], shard.root)
        variables.settle(os.environ, say)
        os.environ[SUBJECTS] = json.dumps(shard.options["subjects"])
        identity = machine.identity(shard.plan["libraries"])
        self.identity = machine.identity_id(identity)
        files.write_json_if_changed(shard.site_folder / "environments" / f"{self.identity}.json", identity)
        self.provenance = provenance.collect(shard.root)
        self.code = cache.of_code(shard.root)
        if of_cluster := cluster.recorded(shard.site_folder / "plan"):
            self.provenance["cluster"] = of_cluster
        self.child: Child | None = None
        self.import_failure: dict[str, Any] | None = None
        self.current: Task | None = None
        self.too_large: set[str] = set()  # keys of cells that ran out of memory here
        self.deadline = shard.deadline(time.time())

    def measure(self, history: journal.History) -> int:
        """Run all tasks that the journal lacks, round by round; return how many cells ran."""
        try:
            return sum(self._settle(task, history) for task in self._due(history))
        except Interrupted:
            if self.current is not None:  # not the cell's fault
                self.book.interrupted(self.current.slot)
            raise
        finally:
            self._stop_child()

    def _due(self, history: journal.History) -> Iterator[Task]:
        """Yield the tasks that the journal lacks, until the time budget is spent.

        Each round and each subject starts with a fresh child, since a subject's code may change any global state.
        """
        last = (0, "")
        for task in self.shard.tasks:
            standing = self.shard.standing(task, history, self.identity)
            if standing is not None:
                if standing["status"] == "oom":
                    self.too_large.add(task.key)
                continue
            if task.cell["skip"]:
                self._say_lacking(task)
                continue
            if self.deadline is not None and time.time() > self.deadline:
                say("time budget spent: the rest is not_run")
                return
            if (now := (task.round, str(task.cell["factors"].get("subject", "")))) != last:
                self._stop_child()
                last = now
            if self._code_changed(task):
                self._say_waiting("is left to the next run: its code has changed since this one was planned")
                return
            yield task

    def _code_changed(self, task: Task) -> bool:
        """Return whether the experiment's or the subject's code differs from what was planned.

        Checked before every cell, as a running child and its ranks may import modules late.
        """
        code = Sources(self.shard.root, self.code.recall)
        experiment, factors = self.shard.plan["experiment"], task.cell["factors"]
        module = registry.module_name(experiment, "measure", code.root)
        if code.fingerprint(module) != self.shard.plan["fingerprint"]:
            return True
        adapters = self.shard.options["subjects"].get(factors.get("subject"))
        return adapters is not None and not subjects.is_planned(experiment, factors, Path(adapters), code)

    def _self_test(self, test: Shard, cell: Mapping[str, Any]) -> dict[str, Any]:
        """Run a self-test on this job's nodes and GPUs; return the child's answer."""
        factors = cell["factors"]
        say(f"{self.shard.plan['experiment']} waits for a self-test of {factors['world_size']} by {factors['backend']}")
        if not self.lease.take(self.deadline):
            return ended(error_kinds.TIMEOUT, "time budget spent")
        child = Child(test.plan["experiment"], test.root, 0, test.plan["libraries"], self.lease)
        try:
            return child.import_failure or child.run(self._request(cell, 1), float(test.options["timeout_s"]))
        finally:
            child.stop()

    def _request(self, cell: Mapping[str, Any], number: int) -> dict[str, Any]:
        folder = str(self.shard.site_folder / "data")
        return {"cell": cell, "seed": self.shard.plan["seed"], "data_folder": folder, "round": number}

    def _say_lacking(self, task: Task) -> bool:
        """If the machine lacks what the cell needs, keep an `unsupported` or `skipped` record and return True."""
        lacking = self.shard.lacking(task)
        if lacking is not None:
            error = {"kind": lacking.kind, "message": lacking.reason}
            answer = {"status": lacking.status, "reason": lacking.reason, "error": error}
            self._keep(task, answer, values={"before_start": True})
        return lacking is not None

    def _settle(self, task: Task, history: journal.History) -> int:
        if self._say_lacking(task):
            return 0
        if history.open_starts.get(task.slot, 0) >= MAX_STARTS:
            self._keep(task, ended(error_kinds.DIED, "killed its job twice"))
            return 0
        if task.key in self.too_large:
            reason = "out of memory in an earlier round"
            error = {"kind": error_kinds.OUT_OF_MEMORY, "message": reason}
            self._keep(task, {"status": "oom", "reason": reason, "error": error}, attempts=0)
            return 0
        if not self.lease.take(self.deadline):  # time budget spent: the next task ends the loop
            return 0
        fresh = self.child is None or not self.child.alive
        answer, attempts = self._attempt(task, 1), 1
        # Try again in a new process: earlier cells may have left memory in use, or something else killed the process.
        if (answer["status"] == "oom" and not fresh) or has_died(answer):
            self._stop_child()
            answer, attempts = self._attempt(task, 2), 2
        self._keep(task, answer, attempts=attempts)
        if answer["status"] == "oom":
            self.too_large.add(task.key)
        if self.shard.options["isolation"] == "cell" or answer["status"] == "oom":
            self._stop_child()
        return 1

    def _attempt(self, task: Task, attempt: int) -> dict[str, Any]:
        if self.import_failure is None and (self.child is None or not self.child.alive):
            self._start_child()
        if self.import_failure is not None or self.child is None:
            failure = self.import_failure or ended(error_kinds.DIED, "no answer")
            return {**failure, "status": "failed", "reason": f"cannot be imported: {failure['reason']}"}
        self.current = task
        self.book.started(task.slot, self.identity, attempt)
        started = time.perf_counter()
        handles = [gpu.handle for gpu in self.lease.gpus]
        gpus = capabilities.gpus_needed(task.cell["requires"])
        by_scheduler = any(need == "srun_mpi" or need.startswith("nodes:") for need in task.cell["requires"])
        with Monitor(gpus, handles, self.lease.cores, ranks_are_descendants=not by_scheduler) as watch:
            answer = self.child.run(self._request(task.cell, task.round), float(self.shard.options["timeout_s"]))
        answer["wall_s"] = time.perf_counter() - started
        answer["watch"] = watch.summary()
        return answer

    def _start_child(self) -> None:
        """Start a child that has imported the experiment; retry once if it was killed, as for a cell."""
        plan = self.shard.plan
        # CUDA reserves far more address space than it uses, so the limit is only for machines without it.
        limit_bytes = host_memory.limit_bytes() if capabilities.missing(("cuda",)) else 0
        for _ in range(2):
            self._stop_child()  # also ends processes that it started
            self.child = Child(plan["experiment"], self.shard.root, limit_bytes, plan["libraries"], self.lease)
            self.import_failure = self.child.import_failure
            if not has_died(self.import_failure or {}):
                return

    def _keep(self, task: Task, answer: Mapping[str, Any], attempts: int = 1, **more: Any) -> None:
        measurement = dict(answer.get("measurement", {}))
        summary = answer.get("watch", {})
        spent = {name: measurement.pop(name, 0.0) for name in ("warmup_s", "timed_s", "compile_s")}
        provenance = {**self.provenance, **self.lease.provenance(), "time": records.now_utc(), "attempts": attempts}
        if answer.get("error"):
            provenance["error"] = answer["error"]
        record = self.shard.fields(
            task,
            status=answer["status"],
            reason=answer["reason"],
            environment=self.identity,
            provenance=provenance,
            watch=summary,
            flags=flags_of({"watch": summary, "provenance": provenance, "flags": []}),
            spent={**spent, "wall_s": answer.get("wall_s", 0.0)},
            **measurement,
            **more,
        )
        self.book.record(record)
        self.current = None
        say(f"{self.shard.plan['experiment']} {task.label()} round={task.round}: {answer['status']} {answer['reason']}")

    def _say_waiting(self, what: str) -> None:
        """Print one line to the log and append one to the journal for the progress display."""
        say(f"{self.shard.plan['experiment']} {what}")
        self.book.append("waiting", what=what, experiment=self.shard.plan["experiment"])

    def _stop_child(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None


def has_died(answer: Mapping[str, Any]) -> bool:
    """Return whether the child died instead of answering."""
    return bool(answer.get("error", {}).get("kind") == error_kinds.DIED)


def _interrupt(number: int, _: object) -> NoReturn:
    for other in STOP_SIGNALS:  # ignore further signals while stopping
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def measure(plan_file: Path, root: Path, out: Path) -> None:
    """Measure what the shard's journal lacks and write its records."""
    started = time.perf_counter()
    shard = Shard(plan_file, root)
    with journal.Journal(shard.folder / f"{shard.plan['shard']}.jsonl") as book:
        worker = Worker(shard, book)
        history, appended = journal.read(shard.folder), book.appended
        try:
            ran = worker.measure(history)
        finally:
            worker.lease.release()
        # Under the lock: a job that outlived its Snakemake must not overwrite its successor's records.
        shard.write_records(out, worker.identity, history if book.appended == appended else None)
    planned = sum(not task.cell["skip"] for task in shard.tasks)
    say(f"{ran} of {planned} cells measured in {time.perf_counter() - started:.1f} s, {len(shard.tasks)} records")
    if planned and not ran:
        say(f"replayed from the journal; `./run remeasure {shard.plan['experiment']}` measures again")


def measure_until_stopped(plan_file: Path, root: Path, out: Path) -> int:
    """Run measure() until a signal asks it to stop; return the exit status."""
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        measure(plan_file, root, out)
    except Interrupted as stop:
        say(f"stopped by {signal.Signals(stop.args[0]).name}")
        return 128 + int(stop.args[0])
    return 0
