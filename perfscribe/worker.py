"""The worker: measures the cells of one shard that the journal lacks, and writes the shard's records.

Three processes: the supervisor starts the worker again where a cell killed it; the worker owns the journal, the
time-outs and the deaths; the child runs cells (child.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from perfscribe import environment, files, journal, records
from perfscribe.plan_cells import cell_key
from perfscribe.watch import Watch, flags

MAX_STARTS = 2
IMPORT_TIMEOUT_S = 300.0
# A process that the kernel cannot end (a driver or a file server that hangs) is left behind after this time.
DEATH_TIMEOUT_S = 30.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """A signal asked the worker to stop; args[0] is its number."""


def say(text: str) -> None:
    """One line into the job's log."""
    print(text, file=sys.stderr, flush=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


@dataclass
class Task:
    """One cell in one round, and what is known before it runs."""

    cell: dict[str, Any]
    key: str
    round: int
    data_digest: str

    @property
    def slot(self) -> journal.Slot:
        """Where the journal keeps it."""
        return self.key, self.round

    def label(self) -> str:
        """The cell's factors as text."""
        return " ".join(f"{name}={level}" for name, level in self.cell["factors"].items())


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; for preexec_fn, parent is the caller's process id.

    Linux only; elsewhere the closed pipe ends a child after its cell.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)


class Child:
    """A running child process; run() gives its answer or says how it ended.

    It leads a process group of its own: Ctrl-C is for the worker to answer, and whatever a cell started ends with it.
    """

    def __init__(self, experiment: str, root: Path, memory_limit_bytes: int, libraries: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "perfscribe.child", experiment, str(memory_limit_bytes), *libraries]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).strip(":")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=root,
            process_group=0,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
        self._buffer = b""
        ready = self._answer(IMPORT_TIMEOUT_S)
        self.import_failure = None if ready.get("ready") else ready

    def run(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The child's answer to one cell; ends the child where it is late or dead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._death()
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.stop()
                    return {"status": "timeout", "reason": f"longer than {timeout_s:g} s"}
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    return self._death()
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self.stop()
            return {"status": "failed", "reason": "wrote into the descriptor that answers go to", "died": True}
        return answer

    def _death(self) -> dict[str, Any]:
        try:
            code = self._process.wait(DEATH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"status": "failed", "reason": "closed its pipe and went on", "died": True}
        if code < 0:
            return {"status": "failed", "reason": f"died by {_signal_name(-code)}", "died": True}
        return {"status": "failed", "reason": f"left with exit code {code}", "died": True}

    @property
    def alive(self) -> bool:
        """Whether it can take another cell."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it at once, and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_TIMEOUT_S)


class Shard:
    """One shard's work: its plan, its journal, its environment."""

    def __init__(self, plan_file: Path, root: Path, site_folder: Path) -> None:
        self.root, self.site_folder = root, site_folder
        self.plan = files.read_json(plan_file)
        options_file = plan_file.with_name("options.json")
        options = files.read_json(options_file) if options_file.is_file() else {}
        self.options = {"isolation": "job", "timeout_s": 600.0} | options.get(self.plan["experiment"], {})
        self.folder = site_folder / "journal" / self.plan["experiment"]
        self.tasks = self._tasks()

    def _tasks(self) -> list[Task]:
        digests = {name: self._data_digest(name) for name in self.plan["datasets"]}
        tasks = []
        for number in range(1, self.plan["rounds"] + 1):
            for cell in self.plan["cells"]:
                digest = "+".join(digests.get(name, "") for name in cell["data"])
                key = cell_key(
                    self.plan["experiment"], cell["factors"], self.plan["fingerprint"], digest, self.plan["seed"]
                )
                tasks.append(Task(cell, key, number, digest))
        return tasks

    def _data_digest(self, dataset: str) -> str:
        path = self.site_folder / "data" / f"{dataset}.digest"
        return str(files.read_json(path)["arrays"]) if path.is_file() else "absent"

    def standing(self, task: Task, history: journal.History, identity: str | None) -> dict[str, Any] | None:
        """The journal's record that stands for the task on a machine of this identity, or None: to be measured.

        identity None: any record stands (a site that is only shown).
        """
        if identity is None:
            return history.latest(task.slot)
        same = history.latest(task.slot, identity)
        record = same or history.latest(task.slot)
        if record is None:
            return None
        if record["status"] == "unsupported" and record["values"].get("before_start"):
            # The machine may have got since what it lacked then.
            return record if environment.missing(task.cell["requires"]) else None
        if same is not None:
            return same
        kept = self.plan["on_identity_change"] == "keep" and record["status"] in ("ok", "oom")
        return record if kept else None

    def fields(self, task: Task, **more: Any) -> dict[str, Any]:
        """A record of the task with these fields."""
        return records.make(
            {
                "experiment": self.plan["experiment"],
                "key": task.key,
                "round": task.round,
                "factors": task.cell["factors"],
                "fingerprint": self.plan["fingerprint"],
                "data_digest": task.data_digest,
                **more,
            }
        )

    def row(self, task: Task, history: journal.History, identity: str | None) -> dict[str, Any]:
        """What stands for the task in the records file."""
        found = self.standing(task, history, identity)
        if task.cell["skip"] and (found is None or found["status"] != "unsupported"):
            record = self.fields(task, status="skipped", reason=task.cell["skip"])
        else:
            record = found or self.fields(task, status="not_run", reason="not measured yet")
        return {**record, "order": task.cell["position"]}

    def write_records(self, out: Path, identity: str | None) -> list[dict[str, Any]]:
        """Write the shard's records from the journal; returns them."""
        history = journal.read(self.folder)
        rows = [self.row(task, history, identity) for task in self.tasks]
        files.write_json_lines(out, rows)
        return rows


class Worker:
    """Measures a shard's missing cells."""

    def __init__(self, shard: Shard, book: journal.Journal) -> None:
        self.shard, self.book = shard, book
        identity = environment.identity(shard.plan["libraries"])
        self.identity = environment.identity_id(identity)
        files.write_json_if_changed(shard.site_folder / "environments" / f"{self.identity}.json", identity)
        self.provenance = environment.provenance(shard.root)
        self.child: Child | None = None
        self.import_failure: dict[str, Any] | None = None
        self.current: Task | None = None
        budget = shard.plan["budget_minutes"]
        self.deadline = time.monotonic() + budget * 60 if budget else None

    def measure(self, history: journal.History) -> int:
        """Run every task that the journal lacks, round by round; returns how many cells ran."""
        try:
            return sum(self._settle(task, history) for task in self._due(history))
        except Interrupted:
            if self.current is not None:  # not to blame
                self.book.interrupted(self.current.slot)
            raise
        finally:
            self._stop_child()

    def _due(self, history: journal.History) -> Iterator[Task]:
        """The tasks that the journal lacks, as far as the time budget goes; each round begins with a fresh child."""
        last_round = 0
        for task in self.shard.tasks:
            if self.shard.standing(task, history, self.identity) is not None:
                continue
            if task.cell["skip"]:
                self._say_unsupported(task)
                continue
            if self.deadline is not None and time.monotonic() > self.deadline:
                say("time budget spent: the rest is not_run")
                return
            if task.round != last_round:
                self._stop_child()
                last_round = task.round
            yield task

    def _say_unsupported(self, task: Task) -> bool:
        """Keep an `unsupported` record where the machine lacks what the cell needs; whether it does."""
        lacking = environment.missing(task.cell["requires"])
        if lacking:
            self._keep(task, {"status": "unsupported", "reason": lacking}, values={"before_start": True})
        return bool(lacking)

    def _settle(self, task: Task, history: journal.History) -> int:
        if self._say_unsupported(task):
            return 0
        if history.open_starts.get(task.slot, 0) >= MAX_STARTS:
            self._keep(task, {"status": "failed", "reason": "killed its job twice"})
            return 0
        answer, attempts = self._attempt(task, 1), 1
        if answer["status"] == "oom" or answer.get("died"):
            self._stop_child()
            answer, attempts = self._attempt(task, 2), 2
        self._keep(task, answer, attempts=attempts)
        if self.shard.options["isolation"] == "cell" or answer["status"] == "oom":
            self._stop_child()
        return 1

    def _attempt(self, task: Task, attempt: int) -> dict[str, Any]:
        if self.import_failure is None and (self.child is None or not self.child.alive):
            plan = self.shard.plan
            limit_bytes = self._memory_limit_bytes()
            self.child = Child(plan["experiment"], self.shard.root, limit_bytes, plan["libraries"])
            self.import_failure = self.child.import_failure
        if self.import_failure is not None or self.child is None:
            failure = self.import_failure or {}
            reason = f"cannot be imported: {failure.get('reason', 'no answer')}"
            return {"status": "failed", "reason": reason, "error": failure.get("error", {})}
        self.current = task
        self.book.started(task.slot, self.identity, attempt)
        request = {
            "cell": task.cell,
            "seed": self.shard.plan["seed"],
            "data_folder": str(self.shard.site_folder / "data"),
        }
        started = time.perf_counter()
        with Watch(gpus=int("cuda" in task.cell["requires"])) as watch:
            answer = self.child.run(request, float(self.shard.options["timeout_s"]))
        answer["wall_s"] = time.perf_counter() - started
        answer["watch"] = watch.summary()
        return answer

    def _memory_limit_bytes(self) -> int:
        # CUDA reserves address space far beyond what it uses, so the limit is for machines without it.
        return environment.memory_limit_bytes() if environment.missing(("cuda",)) else 0

    def _keep(self, task: Task, answer: Mapping[str, Any], attempts: int = 1, **more: Any) -> None:
        measurement = dict(answer.get("measurement", {}))
        summary = answer.get("watch", {})
        spent = {name: measurement.pop(name, 0.0) for name in ("warmup_s", "timed_s", "compile_s")}
        provenance = {**self.provenance, "time": records.now_utc(), "attempts": attempts}
        if answer.get("error"):
            provenance["error"] = answer["error"]
        record = self.shard.fields(
            task,
            status=answer["status"],
            reason=answer["reason"],
            environment=self.identity,
            provenance=provenance,
            watch=summary,
            flags=flags(summary),
            spent={**spent, "wall_s": answer.get("wall_s", 0.0)},
            **measurement,
            **more,
        )
        self.book.record(record)
        self.current = None
        say(f"{self.shard.plan['experiment']} {task.label()} round={task.round}: {answer['status']} {answer['reason']}")

    def _stop_child(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None


def _interrupt(number: int, _: object) -> NoReturn:
    for other in STOP_SIGNALS:  # a second one must not disturb what the first began
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def measure(plan_file: Path, root: Path, site_folder: Path, out: Path) -> None:
    """Measure what the shard's journal lacks and write its records."""
    started = time.perf_counter()
    shard = Shard(plan_file, root, site_folder)
    with journal.Journal(shard.folder / f"{shard.plan['shard']}.jsonl") as book:
        worker = Worker(shard, book)
        ran = worker.measure(journal.read(shard.folder))
        # Under the lock: a job that outlived its Snakemake must not write over its successor's records.
        rows = shard.write_records(out, worker.identity)
    planned = sum(not task.cell["skip"] for task in shard.tasks)
    say(f"{ran} of {planned} cells measured in {time.perf_counter() - started:.1f} s, {len(rows)} records")
    if planned and not ran:
        say(f"replayed from the journal; `./run remeasure {shard.plan['experiment']}` measures again")


def measure_until_stopped(plan_file: Path, root: Path, site_folder: Path, out: Path) -> int:
    """measure() as a process of its own, which ends early where a signal asks for it; returns the exit status."""
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        measure(plan_file, root, site_folder, out)
    except Interrupted as stop:
        say(f"stopped by {_signal_name(stop.args[0])}")
        return 128 + int(stop.args[0])
    return 0


def replay(plan_file: Path, root: Path, site_folder: Path, out: Path) -> None:
    """Write the records of a committed site from its journal; nothing is measured."""
    Shard(plan_file, root, site_folder).write_records(out, identity=None)


def supervise(command: list[str], folder: Path) -> int:
    """Run the worker, again as long as it dies by signal and the journal grew: a cell may take its worker along."""
    asked: list[int] = []
    while True:
        before = _size(folder)
        process = subprocess.Popen(command, preexec_fn=functools.partial(die_with_parent, os.getpid()))
        _forward_signals(process, asked)
        code = process.wait()
        if code >= 0 or asked or _size(folder) == before:
            return code if code >= 0 else 128 - code
        say(f"the worker died by {_signal_name(-code)}; starting it again")


def _forward_signals(process: subprocess.Popen[bytes], asked: list[int]) -> None:
    """Hand requests to stop to the worker, which ends in its own way; the caller goes on waiting for that."""

    def forward(number: int, _: object) -> None:
        asked.append(number)
        process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, forward)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.jsonl")) if folder.is_dir() else 0
