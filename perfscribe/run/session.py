"""One run of the workflow: checks the config, writes the plan, holds the run lock, shows progress."""

import atexit
import contextlib
import fcntl
import math
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from perfscribe import config as configuration
from perfscribe.base import chapters, files
from perfscribe.base.one_line import in_one_line
from perfscribe.instruments import tools
from perfscribe.plan import cache, capabilities, cluster, fingerprint, plan
from perfscribe.records import checkout, checksums
from perfscribe.records.scrub import account
from perfscribe.run import processes, progress
from perfscribe.run.shard import CLOCK

LOCAL_SITE = "local"
# Touched when a run starts jobs.
STARTED = Path(".perfscribe") / "started"
MOST_LINES = 5  # files
LOCK = Path(".perfscribe") / "run.lock"
LOCK_WAIT_S = 0.5
ReadConfig = Callable[..., Mapping[str, Any]]  # of a verb; SystemExit with one line if the config is invalid


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Exit with one line for expected errors, since Snakemake may be quiet, and a traceback for others."""
    try:
        with in_one_line("config", configuration.ConfigError), in_one_line("run", ValueError):
            yield
    except Exception:  # a bug, perhaps in an experiment
        traceback.print_exc()
        sys.exit(1)


def take_lock(root: Path, wait_s: float = 0.0) -> IO[str] | None:
    """Take the lock that allows one run per checkout, waiting up to wait_s; None if another process holds it.

    The kernel releases it when the returned stream is closed or the process ends.
    """
    path = root / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (open as long as the lock is held)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                stream.close()
                return None
            time.sleep(0.1)
        except OSError as error:
            sys.exit(f"run: {path}: this file system locks no files ({error.strerror}); mount it with flock")
    stream.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    stream.write(f"process {os.getpid()} of {account() or os.getuid()} on {socket.gethostname()}, since {since}\n")
    stream.flush()
    return stream


def _another_run(root: Path) -> str:
    """Message that the lock is held, and by whom."""
    owner = (root / LOCK).read_text("utf-8", "replace").strip() or "a process that has not said who it is"
    return f"another run is under way in this checkout: {owner}"


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the run lock; ValueError names the process that already holds it."""
    lock = take_lock(root)
    if lock is None:
        raise ValueError(_another_run(root))
    with lock:
        yield


def clear_leftovers(root: Path) -> None:
    """Remove locks and marks of a killed Snakemake, which needs no --unlock then. Only for the holder of the run lock.

    Marks of incomplete files are not needed either: rules here rename complete files into place.
    """
    for name in ("locks", "incomplete"):
        folder = root / ".snakemake" / name
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)  # Snakemake would take a missing folder for an old format to convert


def site_of(raw: Mapping[str, Any]) -> str:
    """Site of a config."""
    return str(raw.get("site", LOCAL_SITE))


def is_committed(root: Path, site: str) -> bool:
    """Return whether a site was published: it can be shown again, but never measured again."""
    return site != LOCAL_SITE and (root / "results" / site / "published.json").is_file()


def resolve_preset(wanted: str, settings: Mapping[str, Any] | None = None) -> str:
    """Resolve auto: gpu if CUDA works here or, on a cluster (settings), its nodes have GPUs; else cpu."""
    if wanted != "auto":
        return wanted
    if settings is not None:
        return "gpu" if settings["gpus_per_node"] else "cpu"
    return "cpu" if capabilities.missing(("cuda",)) else "gpu"


def make_plan(root: Path, raw: Mapping[str, Any], executor: str | None = None) -> plan.Plan:
    """Make the plan of a checked config; measuring units of a committed site stay as published.

    executor: Snakemake's, if it submits jobs to a cluster.
    """
    memory = cache.of_code(root)
    code = fingerprint.Sources(root, memory.recall)
    site = site_of(raw)
    if is_committed(root, site):
        for name in set(raw.get("chapters", ())) - {*chapters.names()}:
            raise ValueError(
                f"site {site} keeps the chapters that it was published with; `./run chapter {name} --site {site}` "
                f"prints {name} with its numbers"
            )
        planned = plan.replan_presentation(plan.read_index(root / "results" / site / "plan"), code)
    else:
        settings = cluster.settings_for(configuration.resolve(raw, "cpu"), executor)  # the same in all presets
        planned = plan.build(raw, resolve_preset(raw.get("preset", "auto"), settings), root, settings, code)
    memory.save()
    return planned


def write_plan(root: Path, raw: Mapping[str, Any], planned: plan.Plan) -> None:
    """Write the plan's units and the options; for a committed site only units of the presentation."""
    folder = root / "results" / planned.site / "plan"
    if is_committed(root, planned.site):
        for name, unit in planned.units.items():
            files.write_json_if_changed(folder / f"{name}.json", unit)
        return
    planned.write(folder)
    files.write_json_if_changed(
        folder / "options.json", plan.options(configuration.resolve(raw, planned.preset), planned.at_a_time, root)
    )


def renewed(results: Path, planned: plan.Plan, published: bool, delete: Callable[[Path], None]) -> list[str]:
    """Make units due again whose files differ from their checksums; return a few lines to print.

    results: the site's folder. delete: deletes an output.
    """
    units = {
        f"measure-{name}-{shard}": f"records/{name}/{shard}.jsonl"
        for name, shards in planned.shards.items()
        for shard in range(shards)
    }
    units |= {f"data-{name}": f"data/{name}.digest" for name in planned.datasets}
    units |= {f"present-{name}": f"tables/{name}.figures.json" for name in planned.presentations}
    units |= {"report": "summary.json", "page": f"../../report/{planned.site}/report.html"}
    lines = checksums.renew(results, units, published, delete)
    rest = len(lines) - MOST_LINES + 1
    return lines if rest < 2 else [*lines[: MOST_LINES - 1], f"{rest} files more"]


@dataclass
class Session:
    """State of this run for the Snakefile."""

    root: Path
    plan: plan.Plan
    lock: IO[str] | None = field(repr=False)  # None if another process has it
    read_only: bool
    watcher: progress.Watcher | None = None
    started: bool = False
    began: float = 0.0
    budget_ends: float = math.inf
    # Content and mtime in ns of files before this run: plan files, and outputs deleted to make units due.
    before: dict[Path, tuple[bytes, int]] = field(default_factory=dict, repr=False)

    @property
    def measuring_job(self) -> dict[str, Callable[..., int | str | None]]:
        """Cluster resources of a measuring job: functions of the job's wildcards, by resource."""
        jobs = self.plan.cluster
        if jobs is None:
            return {}

        def asking(name: str) -> Callable[..., int | str | None]:
            return lambda wildcards: jobs.measuring_job(wildcards.experiment, int(wildcards.shard)).get(name)

        return {name: asking(name) for name in cluster.MEASURING_JOB}

    def threads(self, experiment: str, shard: int, cores: int) -> int:
        """Number of Snakemake's cores for a measuring job: all, or its share if jobs run at the same time."""
        beside_others = (experiment, shard) in self.plan.beside_others
        return max(1, cores // self.plan.at_a_time) if beside_others else cores

    def keep(self, path: Path) -> None:
        """Remember content and mtime of the file."""
        self.before[path] = path.read_bytes(), path.stat().st_mtime_ns

    def delete(self, path: Path) -> None:
        """Delete an output that is due again; data sets permanently, since a job may not need them for long."""
        if path.suffix != ".digest":
            self.keep(path)
        path.unlink()

    def undo_unless_started(self) -> None:
        """Restore all files, mtimes included, if this process exits without starting a job.

        A dry run, --lint and --report plan for the machine that they run on, which may not be the measured one.
        """
        if self.started:
            return
        for path in (self.root / "results" / self.plan.site / "plan").glob("*.json"):
            if path not in self.before:
                path.unlink()
        for path, (content, modified_ns) in self.before.items():
            if not path.is_file() or path.stat().st_mtime_ns != modified_ns:
                files.write_bytes(path, content)
                os.utime(path, ns=(modified_ns, modified_ns))

    def start(self) -> None:
        """Start showing progress and mark the run as started.

        SystemExit with one line if another process runs in this checkout.
        """
        if self.lock is None:
            sys.exit(f"run: {_another_run(self.root)}")
        from perfscribe.run import stopping  # imports psutil (50 ms), not needed if no job starts

        with one_line_errors():
            self.started = True
            self.before.clear()
            (self.root / STARTED).touch()
            self._start_clock()
            if not self.read_only and (why := checkout.why_no_commit(self.root)):
                processes.say(f"run: commit unknown: {why}")
            self.watcher = progress.Watcher(self.root, self.plan)
            self.watcher.start()
            on_cluster = self.plan.cluster is not None
            stopping.interrupt_at(signal.SIGTERM, *([signal.SIGINT] if on_cluster else []))
            if not on_cluster:
                os.environ[processes.RUN] = str(os.getpid())  # jobs inherit it

    def _start_clock(self) -> None:
        """Write the run's start and the end of its time budget for all measuring jobs."""
        budgets = [unit["budget_minutes"] for unit in self.plan.units.values() if unit.get("budget_minutes")]
        if budgets:
            self.budget_ends = time.time() + 60 * budgets[0]
        ends = {"budget_ends": self.budget_ends} if budgets else {}
        self.began = time.time()
        files.write_json(self.root / CLOCK, {"started": self.began, **ends})

    def end(self, report: str, page: str, failed: bool = False) -> None:
        """Stop showing progress; print the paths of the HTML page and the report."""
        if self.watcher is not None:
            self.watcher.stop(time.time() > self.budget_ends)
        if (self.root / report).is_file():
            if (self.root / page).is_file():
                processes.say(f"as HTML: {page}")
            older = (self.root / report).stat().st_mtime < self.began
            whose = "of the run before; this one" if older else "the run"
            processes.say(f"report: {report}{f' ({whose} did not finish, see above)' if failed else ''}")


def begin(root: Path, overrides: Mapping[str, Any], decides: bool, arguments: Sequence[str] = ()) -> Session:
    """Read and check the config, resolve and write the plan (if decides), take the run lock.

    overrides: settings of Snakemake's --config and --configfile, which override config.yaml.
    decides: False in a job on another machine, which uses the existing plan.
    arguments: Snakemake's, which may name an executor that submits jobs to a cluster.
    """
    with one_line_errors():
        return _begin(root, overrides, decides, cluster.executor_asked_for(arguments))


def keep_bytecode(env: MutableMapping[str, str], root: Path) -> None:
    """Let child processes cache bytecode, below the checkout unless the environment names another place.

    Images of GPU hosts set PYTHONDONTWRITEBYTECODE and have torch without bytecode: on an H100 host a process that
    imports it took 4.4 s instead of 2.0. The checkout's environment was compiled by pip.
    """
    if env.pop("PYTHONDONTWRITEBYTECODE", "") and not Path(sys.prefix).is_relative_to(root.absolute()):
        env.setdefault("PYTHONPYCACHEPREFIX", str(root / ".perfscribe" / "bytecode"))


def _begin(root: Path, overrides: Mapping[str, Any], decides: bool, executor: str | None) -> Session:
    if set(str(root)) & set("{}:"):
        raise ValueError(f"{root}: Snakemake misreads braces in a path, Python colons; give the folder another name")
    raw = configuration.load(root / "config.yaml", overrides)
    configuration.check(raw)
    tools.use(raw.get("tools", {}), root)
    keep_bytecode(os.environ, root)  # jobs inherit it
    os.environ["PYTHONPATH"] = processes.python_path(root)  # as well
    site = site_of(raw)
    read_only = is_committed(root, site)
    if decides and site != LOCAL_SITE and not read_only and not (root / "results" / site).exists():
        processes.say(f"site {site} was not published here: it is measured anew on this machine")
    if not decides:
        # A committed site's plan does not depend on the machine, and its index may predict an older presentation.
        known = make_plan(root, raw) if read_only else plan.read_index(root / "results" / site / "plan")
        return Session(root, known, None, read_only)
    if executor is not None:
        cluster.check_paths(root, Path(sys.executable))
    if executor == cluster.SLURM:
        from perfscribe.run import slurm_jobs  # asks for Slurm's programs

        slurm_jobs.prepare(os.environ)
    lock = take_lock(root, wait_s=LOCK_WAIT_S)
    planned = make_plan(root, raw, executor)
    session = Session(root, planned, lock, read_only)
    results = root / "results" / planned.site
    if lock is None and any(
        files.canonical(files.read_object(results / "plan" / f"{name}.json")) != files.canonical(unit)
        for name, unit in planned.units.items()
    ):
        raise ValueError(_another_run(root))  # its settings differ, so what is due by ours cannot be determined
    if lock is not None:
        for path in (results / "plan").glob("*.json"):
            session.keep(path)
        clear_leftovers(root)
        write_plan(root, raw, planned)
        for line in renewed(results, planned, read_only, session.delete):
            processes.say(f"run: {line}")
        atexit.register(session.undo_unless_started)
    return session
