"""Cluster jobs: how cells are distributed over jobs, the resources of each job, its shell prologue.

The process that the user starts decides this and writes plan/cluster.json; jobs on other machines read that file.
"""

import contextlib
import io
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from perfscribe.base import commands, files
from perfscribe.base.cells import Cell
from perfscribe.config.errors import fault
from perfscribe.plan import capabilities
from perfscribe.records import form

# Snakemake's executors that submit jobs, and the environment variable that is set in their jobs.
SLURM = "slurm"
JOB_VARIABLES = {SLURM: "SLURM_JOB_ID", "cluster-generic": "PBS_JOBID"}
FILE = "cluster.json"
# Variables from which libraries take their number of threads.
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    "NUMEXPR_NUM_THREADS",
)
# Settings left out of records: who pays, and which machines are the user's.
NOT_RECORDED = ("account", "nodes")
# Names of these resources in Snakemake's Slurm executor.
MEASURING_JOB = (
    *("slurm_account", "slurm_partition", "runtime", "constraint", "qos", "mem_mb", "nodes"),
    *("slurm_extra", "tasks", "gpu", "gres", "cpus_per_task"),
)
# Characters in paths that jobs of a cluster would misread. Executors quote the checkout's path, but a shell expands
# some characters in quotes, too, and Slurm expands % in the path of a log; Python's path they do not quote.
MISREAD_IN_CHECKOUT = re.compile(r"""["$`%\\\n]""")
MISREAD_IN_PYTHON = re.compile(r"""["$`%\\\s'&;|<>()\[\]*?]""")


class Need(NamedTuple):
    """Nodes of a job, and GPUs per node."""

    nodes: int
    gpus: int


ONE_NODE, NOTHING = Need(1, 0), Need(0, 0)


def executor_asked_for(arguments: Sequence[str]) -> str | None:
    """Executor (a key of JOB_VARIABLES) that Snakemake's arguments or profile name; None if they name none of these."""
    from snakemake.cli import parse_args

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # parsing prints the profile a second time
            _, namespace = parse_args(list(arguments))
    except (Exception, SystemExit):  # not Snakemake's command line: its Python interface was used
        return None
    return namespace.executor if namespace.executor in JOB_VARIABLES else None


def check_paths(checkout: Path, python: Path) -> None:
    """Raise ValueError (one line) for a path with a character that jobs of a cluster would misread."""
    for path, misread in ((checkout, MISREAD_IN_CHECKOUT), (python, MISREAD_IN_PYTHON)):
        if sign := misread.search(str(path)):
            why = f"jobs of a cluster would misread {sign[0]!r} in this path; give the folder another name"
            raise ValueError(f"{str(path)!r}: {why}")


def settings_for(config: Mapping[str, Any], executor: str | None) -> dict[str, Any] | None:
    """Cluster settings of a resolved config, with max_nodes filled in; None for this machine.

    Raises ValueError (one line) if jobs would need several nodes, but the executor cannot start ranks on them.
    """
    if executor is None:
        return None
    settings = {**config["cluster"], "executor": executor}
    if settings["max_nodes"] is None:
        settings["max_nodes"] = nodes_of_partition(settings["partition"]) if executor == SLURM else 1
    elif settings["max_nodes"] > 1 and executor != SLURM:
        others = f"null or 1, as ranks are started across nodes by Slurm alone, not in jobs of {executor}"
        raise ValueError(fault("cluster.max_nodes", settings["max_nodes"], others))
    if settings["nodes"]:
        settings["max_nodes"] = min(settings["max_nodes"], len(settings["nodes"]))
    return settings


def nodes_of_partition(partition: str | None) -> int:
    """Number of usable nodes, busy ones included, of a Slurm partition (None: the default one); 1 if unknown.

    Drained or down nodes do not count: Slurm would keep a job that needs them waiting, and the report with it.
    """
    listing = commands.output("sinfo", "--noheader", "--all", "--format=%P %F") or ""
    counts: dict[str, int] = {}
    # Columns of %F: nodes allocated/idle/other/total.
    for name, busy, idle in re.findall(r"^(\S+) (\d+)/(\d+)/\d+/\d+$", listing, re.MULTILINE):
        is_meant = name.endswith("*") if partition is None else name.rstrip("*") == partition
        counts[name] = counts.get(name, 0) + (int(busy) + int(idle) if is_meant else 0)
    return max([1, *counts.values()])


# --- dealing cells out to jobs ----------------------------------------------------------------------------------


def need_of(requires: Sequence[str], settings: Mapping[str, Any]) -> Need:
    """Resources for a cell with these capabilities: one GPU, or whole nodes if it needs several."""
    gpus = min(capabilities.gpus_needed(requires), settings["gpus_per_node"])
    nodes = min(capabilities.nodes_needed(requires), settings["max_nodes"])
    return Need(nodes, settings["gpus_per_node"] if gpus > 1 or (gpus and nodes > 1) else gpus)


Positioned = tuple[int, Cell]  # a cell and its position in its tables


@dataclass
class _Pile:
    """Cells of one experiment with the same need, in measuring order."""

    experiment: str
    need: Need
    cells: list[Positioned] = field(default_factory=list)
    jobs: int = 1

    @cached_property
    def measured(self) -> int:
        """Number of cells that are measured; cached, so read only when the pile is complete."""
        return sum(not cell.skip for _, cell in self.cells)

    @property
    def cells_per_job(self) -> float:
        return self.measured / self.jobs


@dataclass(frozen=True)
class Share:
    """Cells that one job measures, a shard of an experiment, and the nodes and GPUs that it asks for."""

    need: Need
    cells: list[Positioned]


def deal(
    cells: Mapping[str, Sequence[Positioned]], shards: Mapping[str, int], settings: Mapping[str, Any] | None
) -> dict[str, list[Share]]:
    """Distribute cells over the shards of each experiment, round-robin, so that each shard gets cells of every cost.

    cells: by experiment, in measuring order. shards: number of jobs that the config asks for; on a cluster (settings)
    this is a minimum: each need has at least one job, and the jobs with most cells are split until there are max_jobs.
    """
    piles = [pile for experiment, positioned in cells.items() for pile in _piles(experiment, positioned, settings)]
    for experiment, wanted in shards.items():
        _add_jobs([pile for pile in piles if pile.experiment == experiment], wanted)
    if settings is not None:
        _add_jobs(piles, settings["max_jobs"])
    dealt: dict[str, list[Share]] = {experiment: [] for experiment in cells}
    for pile in piles:
        dealt[pile.experiment] += [Share(pile.need, pile.cells[job :: pile.jobs]) for job in range(pile.jobs)]
    return dealt


def _piles(experiment: str, cells: Sequence[Positioned], settings: Mapping[str, Any] | None) -> list[_Pile]:
    piles: dict[Need, _Pile] = {}
    for position, cell in cells:
        if settings is None:
            need = ONE_NODE
        elif cell.skip and piles:  # costs no time, so that any job can take it
            need = next(iter(piles))
        else:
            need = need_of(cell.requires, settings)
        piles.setdefault(need, _Pile(experiment, need)).cells.append((position, cell))
    return list(piles.values()) or [_Pile(experiment, NOTHING)]  # an experiment without cells has a shard, too


def _add_jobs(piles: Sequence[_Pile], wanted: int) -> None:
    """Split piles until there are `wanted` jobs or one job per cell."""
    while sum(pile.jobs for pile in piles) < wanted:
        largest = max(piles, key=lambda pile: pile.cells_per_job)
        if largest.cells_per_job <= 1:
            return
        largest.jobs += 1


# --- what a job asks for and does -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """Settings of a run's cluster, and what its jobs ask for. needs: by experiment, one per shard."""

    settings: Mapping[str, Any]
    needs: Mapping[str, Sequence[Need]]

    def small_job(self) -> dict[str, Any]:
        """Resources of a job that does not measure."""
        settings = self.settings
        return {
            "slurm_account": settings["account"],
            "slurm_partition": settings["partition"],
            "runtime": settings["time_minutes"],
            "constraint": settings["constraint"],
            "qos": settings["qos"],
            "mem_mb": settings["mem_mb"] or 0,
            "nodes": 1,
        }

    def measuring_job(self, experiment: str, shard: int) -> dict[str, Any]:
        """Resources of a shard's job: one GPU or whole nodes; one task per node, which starts the ranks."""
        settings, need = self.settings, self.needs[experiment][shard]
        if need == NOTHING:
            return self.small_job() | {"cpus_per_task": 1}
        # One-GPU jobs hardly disturb each other; jobs that time cores, links or several GPUs need exclusive nodes.
        alone = settings["exclusive"] and need != Need(1, 1)
        job = self.small_job() | {"nodes": need.nodes, "slurm_extra": self._extra(experiment, shard, alone) or None}
        if need.gpus:
            job |= {"gpu": need.gpus} if need.nodes == 1 else {"gres": f"gpu:{need.gpus}"}
        elif need.nodes > 1:
            job |= {"tasks": need.nodes}
        # A negative number omits the option, which would restrict the job's step to that many cores.
        cores = settings["cores"] or (-1 if alone or need.gpus else 1)
        return job | {"cpus_per_task": cores}

    def _extra(self, experiment: str, shard: int, alone: bool) -> str:
        """Options of sbatch for which Snakemake has no resource."""
        names = self.settings["nodes"]
        words = ["--exclusive"] if alone else []
        if names:
            number = sum(len(needs) for name, needs in self.needs.items() if name < experiment) + shard
            count = self.needs[experiment][shard].nodes
            chosen = [names[(number * count + place) % len(names)] for place in range(count)]
            words.append(f"--nodelist={','.join(chosen)}")
        return " ".join(words)

    def jobs_at_a_time(self, allowed: int | None) -> int:
        """Maximum number of jobs queued or running at a time; at most what --jobs or the profile allows."""
        most = int(self.settings["max_jobs"])
        return min(most, allowed or most)

    def prologue(self, root: Path) -> str:
        """Shell code at the start of a job: variables, then the lines of setup, which may use unset variables.

        root: the checkout whose package the job imports, whatever these did to PYTHONPATH.
        """
        # Snakemake sets these variables to the rule's threads, which is 1 here, but the job may use all its cores.
        # torch prefers MKL_NUM_THREADS to OMP_NUM_THREADS, so the user's number is set for all of them.
        limit = self.settings["environment"].get("OMP_NUM_THREADS")
        cores = "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" if limit is None else shlex.quote(str(limit))
        threads = [f"CORES={cores}", *(f'export {name}="$CORES"' for name in THREAD_VARIABLES)]
        exports = [f"export {name}={shlex.quote(str(value))}" for name, value in self.settings["environment"].items()]
        # The prologue replaces Snakemake's `set -euo pipefail`.
        setup = ["set +u -e", *self.settings["setup"], "set +e -u"] if self.settings["setup"] else []
        package = f'export PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        return "".join(f"{line}\n" for line in [*threads, *exports, *setup, package])


def read(plan_folder: Path) -> Cluster | None:
    """Cluster of a planned run; None if it measures on its own machine."""
    path = plan_folder / FILE
    if not path.is_file():
        return None
    content = files.read_json(path)
    with form.as_written(path):
        needs = {name: [Need(*numbers) for numbers in needs] for name, needs in content["needs"].items()}
        return Cluster(dict(content["settings"]), needs)


def recorded(plan_folder: Path) -> dict[str, Any]:
    """Cluster settings to write into records, without NOT_RECORDED; {} if this process is not in a cluster's job."""
    cluster = read(plan_folder)
    if cluster is None or JOB_VARIABLES[cluster.settings["executor"]] not in os.environ:
        return {}
    return {name: value for name, value in cluster.settings.items() if name not in NOT_RECORDED}
