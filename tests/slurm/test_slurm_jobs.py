"""Jobs of `snakemake --profile slurm report` that are disturbed in mid-run, each in a separate run on a real Slurm.

These runs wait for most of their time, so that they go on beside each other. Those that take nodes away have a cluster
of their own.
"""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import faulty
import pytest
import test_publish
from local_slurm import LocalSlurm, cluster, wait_for
from on_slurm import RUN_S, OnSlurm, jobs_of, lost, tail

from perfscribe.records import scrub

# Jobs of one partition take nodes from those of the other. Jobs are queued again only where they ask for it.
CONF = """PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobRequeue=0
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
PartitionName=closed Nodes=ALL State=DOWN"""
# Of which each would hide the jobs from a query, or from scancel; or let sbatch wait, or submit four jobs.
DEFAULTS = {
    "SQUEUE_PARTITION": "urgent",
    "SQUEUE_USERS": "nobody",
    "SQUEUE_ACCOUNT": "other",
    "SQUEUE_FORMAT2": "JobID",
}
DEFAULTS |= {"SCANCEL_PARTITION": "urgent", "SINFO_PARTITION": "urgent", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "0-3"}
STOP_S = 20.0
AT_A_TIME = 10  # runs


@dataclass
class Ran:
    """A run that has ended: its tree, what it said, the job that something happened to, where its cells noted."""

    space: OnSlurm
    log: str
    job: str
    side_file: Path
    node: str = ""

    def __post_init__(self) -> None:
        known = self.space.slurm.jobs()
        self.jobs = jobs_of(self.log)
        self.states = {job: known[job][0] for job in {*self.jobs, self.job} - {""}}
        self.ended, self.lost = faulty.notes(self.side_file, "end"), lost(self.side_file).total()

    @property
    def each_cell_once(self) -> bool:
        """Whether each of four cells has ended, and none twice."""
        return set(self.ended.values()) == {1} and len(self.ended) == 4


def one_job(folder: Path, slurm: LocalSlurm) -> OnSlurm:
    return OnSlurm(folder, slurm, max_jobs=1, exclusive=False)


def start_again(slurm: LocalSlurm, job: str) -> None:
    """A requeued job waits for two minutes; an administrator need not.

    But for some seconds: a node refuses a job, which ends as FAILED, in the second in which it revoked its first start.
    """
    wait_for(lambda: slurm.jobs()[job][0] == "PENDING", 240, f"{job} to be queued again")
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now+3")


def ended(slurm: LocalSlurm, job: str) -> None:
    """Wait until a job that was told to end has done so."""
    wait_for(lambda: slurm.jobs()[job][0] not in ("RUNNING", "COMPLETING"), 180, f"{job} to end")


def disturbed(folder: Path, slurm: LocalSlurm, disturb: Callable[[str, str], object]) -> Ran:
    """Four cells; behind the first one this happens to the job of that number on that node, and then the others end."""
    space = one_job(folder, slurm)
    side_file = space.add_staged(cells=4)
    run = space.begin()
    job, node = space.after(side_file, 1)
    disturb(job, node)
    faulty.let_end(side_file, 4)
    assert run.wait(RUN_S) == 0, tail(run.log())
    return Ran(space, run.log(), job, side_file, node)


def time_limit(folder: Path, slurm: LocalSlurm) -> None:
    """Slurm looks every half minute which jobs are over their time."""

    def disturb(job: str, node: str) -> None:
        slurm.ask("scontrol", "update", f"JobId={job}", "EndTime=now+1")
        ended(slurm, job)

    run = disturbed(folder, slurm, disturb)
    assert [run.states[job] for job in run.jobs] == ["TIMEOUT", "COMPLETED"] and run.each_cell_once and run.lost <= 1


def lost_thrice(folder: Path, slurm: LocalSlurm) -> None:
    """As often as a job is submitted; then the same command again.

    Twice within the same cell, without a word as where it takes more memory than its job has.
    """
    space = one_job(folder, slurm)
    side_file = space.add_staged(cells=5)
    run = space.begin()
    for begun, killed in ((2, True), (3, True), (4, False)):
        wait_for(lambda begun=begun: faulty.notes(side_file).total() == begun, 240, f"{begun} cells to begin")
        job, _ = space.job_running()
        slurm.ask("scancel", *(["--signal=KILL", f"{job}.0"] if killed else [job]))
        ended(slurm, job)
    assert run.wait(RUN_S) == 1, tail(run.log())
    first = run.log()
    faulty.let_end(side_file, 5)
    result = Ran(space, first + space.finish(), job, side_file)
    assert [result.states[job] for job in result.jobs] == ["FAILED"] * 2 + ["CANCELLED", "COMPLETED"]
    assert "logs/local/measure_slow_0.log" in result.log
    assert set(result.ended.values()) == {1} and len(result.ended) == 4 and result.lost <= 3
    ends = [(row["status"], row["reason"]) for row in space.rows("slow")]
    assert ends == [("ok", ""), ("failed", "killed its job twice"), *[("ok", "")] * 3], tail(result.log)


def kill_9(folder: Path, slurm: LocalSlurm) -> None:
    """Kill the driver and repeat the command, which submits a job while the first one's still runs."""
    space = one_job(folder, slurm)
    side_file = space.add_staged(cells=4)
    run = space.begin()
    job, _ = space.after(side_file, 1)
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL
    again = space.begin()
    wait_for(lambda: jobs_of(again.log()) or not again.alive(), 180, "a job of the second run")
    assert slurm.jobs()[job][0] == "RUNNING"
    faulty.let_end(side_file, 4)
    assert again.wait(RUN_S) == 0, tail(again.log())
    result = Ran(space, again.log(), job, side_file)
    assert "Lock" not in result.log and len(result.jobs) == 1 and job not in result.jobs
    assert set(result.states.values()) == {"COMPLETED"} and result.each_cell_once
    assert not result.lost  # the first job's cells count


def interrupt(folder: Path, slurm: LocalSlurm) -> None:
    """Ctrl-C, then SIGTERM, and the same command again."""
    space = one_job(folder, slurm)
    side_file = space.add_staged(cells=4)
    for number in (signal.SIGINT, signal.SIGTERM):
        run = space.begin(**DEFAULTS)
        job, _ = space.after(side_file, 1)
        os.kill(run.pid, number)
        assert run.wait(STOP_S) != 0
        ended(slurm, job)
        assert slurm.jobs()[job][0] == "CANCELLED" and len(jobs_of(run.log())) == 1
    faulty.let_end(side_file, 4)
    result = Ran(space, space.finish(), job, side_file)
    assert result.each_cell_once and result.lost <= 2


def never_starts(folder: Path, slurm: LocalSlurm) -> None:
    """In a partition that is down, until SIGTERM."""
    space = OnSlurm(folder, slurm, partition="closed")
    side_file = space.add_sleeping(cells=1, seconds=0)
    run = space.begin()
    wait_for(lambda: "wait: PartitionDown" in run.log(), 180, "the reason")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait(STOP_S) != 0
    assert list(Ran(space, run.log(), "", side_file).states.values()) == ["CANCELLED"]


def spread(folder: Path, slurm: LocalSlurm) -> None:
    """Over jobs and nodes that are pinned; what is published of a cluster names no node."""
    space = OnSlurm(folder, slurm, max_jobs=2, nodes=["node2", "node1"])
    side_file = space.add_sleeping(cells=6, seconds=0.5)
    run = Ran(space, space.finish(), "", side_file)
    assert len(run.jobs) == 2 and set(run.ended.values()) == {1}
    site = space.root / "results" / "local"
    shards = [json.loads(path.read_text())["cells"] for path in sorted(site.glob("plan/measure-slow-*"))]
    assert [[cell["factors"]["n"] for cell in cells if not cell["skip"]] for cells in shards] == [[0, 2, 4], [1, 3, 5]]
    records = [path.read_text().splitlines() for path in sorted(site.glob("records/slow/*"))]
    nodes = [{json.loads(line)["provenance"]["node"] for line in lines} for lines in records]
    assert nodes == [{"node2"}, {"node1"}]
    space.succeed("publish", "two")
    private = scrub.private_here(space.root).including(["node1", "node2"])
    for parent in ("results", "report"):
        assert scrub.find_private(space.root / parent / "two", private) == []
    assert not [path for path in test_publish.published_files(space.root, "two") if path.name == "cluster.json"]
    for name, node in (("local", "node"), ("two", "node ")):
        assert "2 nodes of a cluster" in space.report(name)
        assert [len(re.findall(rf"\| {node}{n} +\| 3 +\|", space.report(name))) for n in (1, 2)] == [1, 1]


def refused(folder: Path, slurm: LocalSlurm) -> None:
    space = OnSlurm(folder, slurm, partition="nowhere")
    space.add_sleeping(cells=1, seconds=0)
    run = space.begin()
    assert run.wait(RUN_S) == 1, tail(run.log())
    assert "invalid partition specified: nowhere" in run.log() and not jobs_of(run.log())


def node_down(folder: Path, slurm: LocalSlurm) -> None:
    """Slurm itself queues the job again, on the other node."""

    def disturb(job: str, node: str) -> None:
        slurm.fail(node)
        wait_for(lambda: slurm.node_states()[node].startswith("down"), 180, f"{node} is known to be down")
        start_again(slurm, job)

    run = disturbed(folder, slurm, disturb)
    assert run.jobs == [run.job] and run.states[run.job] == "COMPLETED" and run.each_cell_once and run.lost == 1
    nodes = Counter(row["provenance"]["node"] for row in run.space.rows("slow"))
    assert set(nodes) == {"node1", "node2"} and nodes[run.node] < 4


def preempted(folder: Path, slurm: LocalSlurm) -> None:
    """Another partition takes the node for good, and preempted jobs end; the job is queued again."""

    def disturb(job: str, node: str) -> None:
        said = slurm.ask("srun", "-p", "urgent", "--exclusive", "-w", node, "hostname", timeout_s=240)
        assert said.endswith(node), said
        start_again(slurm, job)

    run = disturbed(folder, slurm, disturb)
    assert run.jobs == [run.job] and "Restarts=1" in slurm.ask("scontrol", "show", "job", run.job)
    assert run.each_cell_once and run.lost <= 1


SHARED = (lost_thrice, time_limit, kill_9, interrupt, never_starts, spread, refused)
OWN = (node_down, preempted)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Callable[..., None], Future[None]]]:
    """Ends by scenario; the first request starts all of them, the longest first."""
    folder = tmp_path_factory.mktemp("runs")

    def alone(scenario: Callable[[Path, LocalSlurm], None]) -> None:
        with cluster(more_conf=CONF) as own:
            scenario(folder / scenario.__name__, own)

    with cluster(cpus=16, more_conf=CONF) as slurm, ThreadPoolExecutor(AT_A_TIME) as pool:
        given = {one: pool.submit(alone, one) for one in OWN}
        yield given | {scenario: pool.submit(scenario, folder / scenario.__name__, slurm) for scenario in SHARED}


@pytest.mark.parametrize("scenario", [*SHARED, *OWN], ids=lambda scenario: scenario.__name__)
def test_each_cell_is_measured_once_whatever_happens_to_its_job(scenario, ran) -> None:
    ran[scenario].result()
