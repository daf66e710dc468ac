"""`snakemake --profile slurm report` on a real Slurm of two nodes: whole runs, and what happens to jobs in mid-run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import clusters
import faulty
import pytest
import test_gate
import yaml
from clusters import cluster
from local_slurm import LocalSlurm, NotHere, wait_for
from sessions import Process
from workspace import ROOT, Workspace

from perfscribe import plan

COMMAND = ("snakemake", "--profile", "slurm", "report")
RUN_S = 550.0
# Jobs of this partition take nodes from those of the other.
URGENT = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP"""
ENDED_WELL = ("ok", "unsupported", "skipped")


def test_what_a_machine_without_slurm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_here(accounting: bool) -> None:
        raise NotHere("a cluster in network name spaces needs root")

    monkeypatch.setattr(clusters, "require", not_here)
    monkeypatch.delenv("REQUIRE", raising=False)
    monkeypatch.delenv(clusters.ASKED_FOR, raising=False)
    with pytest.raises(pytest.skip.Exception, match="set PERFSCRIBE_SLURM_TESTS=1 or REQUIRE=slurm"):
        cluster().__enter__()
    monkeypatch.setenv(clusters.ASKED_FOR, "1")
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        cluster().__enter__()
    monkeypatch.setenv("REQUIRE", "other,slurm")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE names slurm, but a cluster in network name spaces needs"):
        cluster().__enter__()


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    with cluster(cpus=8, more_conf=URGENT) as up:
        yield up


class OnSlurm(Workspace):
    """A project tree whose user sits on the login node."""

    def __init__(self, root: Path, slurm: LocalSlurm, **settings: object) -> None:
        root.mkdir()
        super().__init__(root)
        self.slurm, self.output = slurm, root / "output.log"
        self.configure(**settings)

    def configure(self, **settings: object) -> None:
        """Preset tiny, and the section `cluster`."""
        path = self.root / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config |= {"preset": "tiny", "cluster": {**config["cluster"], **settings}}
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def login(self) -> dict[str, str]:
        """Variables of the login shell, with the environment's programs on PATH."""
        mine = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PERFSCRIBE_COMMIT": "0" * 40}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**self.slurm.environment(), **mine, "PATH": path}

    def begin(self, *command: str, **variables: str) -> Process:
        """Start a command, by default the user's."""
        return Process(command or COMMAND, self.root, {**self.login(), **variables}, self.output)

    def finish(self, **variables: str) -> str:
        """Run the user's command to its end; what it said. It must succeed."""
        run = self.begin(**variables)
        code = run.wait(RUN_S)
        assert code == 0, tail(run.log())
        return run.log()

    def add_sleeping(self, cells: int, seconds: float) -> Path:
        """One experiment, `slow`, whose cells last that long; the file in which they note each execution."""
        side_file = self.root / "executions"
        self.only()
        self.add_experiment("slow", faulty.sleeping("slow", side_file, (seconds,)), n=list(range(cells)))
        return side_file

    def job_running(self) -> tuple[str, str]:
        """Number and nodes of the measuring job, as soon as one runs."""

        def running() -> tuple[str, str] | None:
            own, known = jobs_of(self.output.read_text()), self.slurm.jobs()
            return next(((job, known[job][1]) for job in own if known.get(job, ("",))[0] == "RUNNING"), None)

        found: tuple[str, str] = wait_for(running, 60, "a job that runs")
        return found

    def after(self, side_file: Path, cells: int) -> tuple[str, str]:
        """The running job, once so many of its cells have ended and another has begun."""

        def there() -> bool:
            ended, begun = (faulty.notes(side_file, what).total() for what in ("end", "start"))
            return ended >= cells and begun > ended

        wait_for(there, 90, f"{cells} cells to end")
        return self.job_running()


def tail(text: str) -> str:
    """The end of a log, without its longest lines."""
    return "\n".join(line[:300] for line in text.splitlines()[-60:])


def jobs_of(log: str) -> list[str]:
    """Numbers of Slurm's jobs that a run has submitted."""
    return re.findall(r"submitted with SLURM jobid (\d+)", log)


def lost(side_file: Path) -> Counter[str]:
    """Cells that were started more often than they ended."""
    return faulty.notes(side_file) - faulty.notes(side_file, "end")


# --- the user's command, from nothing to a report ------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> OnSlurm:
    """The project with the tiny preset, measured from a login node where torch cannot be imported."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a login node has no torch')\n")
    space = OnSlurm(folder / "whole", slurm, environment={"PYTHONPATH": ""}, setup=["export SEEN_IN_JOBS=yes"])
    space.finish(PYTHONPATH=str(folder))
    return space


def measured(space: OnSlurm) -> list[dict]:
    """The records of all experiments, of cells that were started."""
    rows = [row for name in plan.measured_experiments(space.root) for row in space.rows(name)]
    return [row for row in rows if row["provenance"] and not row["values"].get("before_start")]


def test_the_command_word_for_word(whole: OnSlurm) -> None:
    assert whole.report().startswith("# ")
    log = whole.output.read_text()
    assert log.count("report: report/local/report.md") == 1 and "a login node has no torch" not in log
    rows = [row for name in plan.measured_experiments(whole.root) for row in whole.rows(name)]
    refused = "RuntimeError: the feature number of src and tgt must be equal to d_model"
    bad = [row for row in rows if row["status"] not in ENDED_WELL and row["reason"] != refused]
    assert not bad, [(row["experiment"], row["factors"], row["status"], row["reason"]) for row in bad]
    assert sum(row["status"] == "ok" for row in rows) > 100


def test_both_nodes_measured_and_records_say_so(whole: OnSlurm) -> None:
    rows = measured(whole)
    assert {row["provenance"]["node"] for row in rows} == {"node1", "node2"}
    submitted = jobs_of(whole.output.read_text())
    assert {row["provenance"]["slurm_job_id"] for row in rows} <= set(submitted)
    (said,) = {json.dumps(row["provenance"]["cluster"], sort_keys=True) for row in rows}
    settings = json.loads(said)
    assert (settings["executor"], settings["max_nodes"], settings["exclusive"]) == ("slurm", 2, True)
    assert settings["setup"] == ["export SEEN_IN_JOBS=yes"]


def test_jobs_are_few_and_not_for_what_is_only_shown(whole: OnSlurm) -> None:
    log = whole.output.read_text()
    made = plan.read_index(whole.root / "results" / "local" / "plan")
    assert len(jobs_of(log)) == sum(made.shards.values()) + len(made.datasets)
    assert set(state for state, _ in whole.slurm.jobs().values()) == {"COMPLETED"}


def test_a_second_run_starts_nothing(whole: OnSlurm) -> None:
    before, report = whole.slurm.jobs(), whole.report()
    log = whole.finish()
    assert "Nothing to be done" in log and not jobs_of(log)
    assert whole.slurm.jobs() == before and whole.report() == report


# --- ranks on two nodes -------------------------------------------------------------------------------------------


def test_the_row_of_real_nodes(whole: OnSlurm) -> None:
    (row,) = [row for row in whole.rows("communication_nodes") if row["status"] != "skipped"]
    assert row["status"] == "ok" and "inter_transfer_ms" in row["samples"], row["reason"]
    assert "the network between two nodes takes" in whole.report()


PROGRAM = """import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from perfscribe.parallel.nodes import NodeCrew


def step(arguments, rank):
    torch.manual_seed(0)
    number, count = rank.place.rank, rank.place.world_size
    model = torch.nn.Linear(4, 2, bias=False)
    if arguments["kind"] == "all_reduce":
        tensor = torch.full((1024,), float(number + 1))
        dist.all_reduce(tensor)
        found = sorted(set(tensor.tolist()))
    else:
        if arguments["kind"] == "ddp":
            wrapped = DistributedDataParallel(model)
        else:
            wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
        wrapped(torch.full((1, 4), float(number + 1))).sum().backward()
        gradient = model.weight.grad
        found = sorted(set((gradient.full_tensor() if arguments["kind"] == "fsdp" else gradient).flatten().tolist()))
    return {"node": rank.place.host, "rank": number, "local_rank": rank.place.local_rank, "found": found}


if __name__ == "__main__":
    import two_nodes

    for ranks_per_node in (1, 2):
        with NodeCrew(two_nodes.step, nodes=2, ranks_per_node=ranks_per_node, timeout_s=120) as crew:
            for kind in ("all_reduce", "ddp", "fsdp"):
                print("RESULT", json.dumps([ranks_per_node, kind, crew.ask({"kind": kind})]), flush=True)
"""


def test_all_reduce_ddp_and_fsdp_over_two_nodes(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Ranks of both nodes exchange over the network between them, each node by name; by one rank a node and by two."""
    (tmp_path / "two_nodes.py").write_text(PROGRAM)
    batch = ["sbatch", "--wait", "-N2", "--ntasks=2", f"--output={tmp_path}/said", f"--chdir={tmp_path}", "--wrap"]
    variables = {**slurm.environment(), "PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    subprocess.run([*batch, f"{sys.executable} two_nodes.py"], env=variables, timeout=RUN_S, capture_output=True)
    said = (tmp_path / "said").read_text()
    results = [json.loads(line.removeprefix("RESULT ")) for line in said.splitlines() if line.startswith("RESULT ")]
    assert len(results) == 6, tail(said)
    for ranks_per_node, kind, ranks in results:
        count = 2 * ranks_per_node
        total = count * (count + 1) / 2
        assert [rank["rank"] for rank in ranks] == list(range(count))
        assert [rank["local_rank"] for rank in ranks] == [*range(ranks_per_node)] * 2
        assert {rank["node"] for rank in ranks} == {"node1", "node2"}
        expected = total if kind == "all_reduce" else total / count
        assert all(rank["found"] == [expected] for rank in ranks), (kind, ranks)


# --- what happens to jobs in mid-run -------------------------------------------------------------------------------
# These runs wait for most of their time, so that they share the cluster: each has its own tree and one job at a time.


@dataclass
class Ran:
    """A run that has ended: its tree, what it said, the job that something happened to, where its cells noted."""

    space: OnSlurm
    log: str
    job: str
    side_file: Path

    def __post_init__(self) -> None:
        known = self.space.slurm.jobs()
        self.jobs = jobs_of(self.log)
        self.states = {job: known[job][0] for job in {*self.jobs, self.job} - {""}}
        self.ended, self.lost = faulty.notes(self.side_file, "end"), lost(self.side_file).total()


def one_job(folder: Path, slurm: LocalSlurm) -> OnSlurm:
    return OnSlurm(folder, slurm, max_jobs=1, exclusive=False)


def disturbed(folder: Path, slurm: LocalSlurm, seconds: float, *commands: tuple[str, ...]) -> Ran:
    """Four cells; behind the first one these commands, where JOB stands for the job."""
    space = one_job(folder, slurm)
    side_file = space.add_sleeping(cells=4, seconds=seconds)
    run = space.begin()
    job, _ = space.after(side_file, 1)
    for command in commands:
        slurm.ask(*(word.replace("JOB", job) for word in command))
    assert run.wait(RUN_S) == 0, tail(run.log())
    return Ran(space, run.log(), job, side_file)


def scancel(folder: Path, slurm: LocalSlurm) -> Ran:
    return disturbed(folder, slurm, 2, ("scancel", "JOB"))


def time_limit(folder: Path, slurm: LocalSlurm) -> Ran:
    """Slurm looks every half minute which jobs are over their time."""
    return disturbed(folder, slurm, 15, ("scontrol", "update", "JobId=JOB", "EndTime=now+1"))


def requeue(folder: Path, slurm: LocalSlurm) -> Ran:
    """A requeued job waits for two minutes; an administrator need not."""
    return disturbed(
        folder, slurm, 2, ("scontrol", "requeue", "JOB"), ("scontrol", "update", "JobId=JOB", "StartTime=now")
    )


def kill_9(folder: Path, slurm: LocalSlurm) -> Ran:
    """Of the driver, and the same command again while the first one's job still runs."""
    space = one_job(folder, slurm)
    side_file = space.add_sleeping(cells=4, seconds=4)
    run = space.begin()
    job, _ = space.after(side_file, 1)
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait(30) == -signal.SIGKILL
    assert slurm.jobs()[job][0] == "RUNNING"
    return Ran(space, space.finish(), job, side_file)


def interrupt(folder: Path, slurm: LocalSlurm) -> Ran:
    """Ctrl-C, and the same command again."""
    space = one_job(folder, slurm)
    side_file = space.add_sleeping(cells=4, seconds=2)
    run = space.begin()
    job, _ = space.after(side_file, 1)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(RUN_S) != 0
    wait_for(lambda: slurm.jobs()[job][0] not in ("RUNNING", "COMPLETING"), 60, "the job to be cancelled")
    return Ran(space, space.finish(), job, side_file)


KILLER = """def cells(config):
    return [Cell({"n": n}, cost=n) for n in config["n"]]


def run(cell):
    import psutil, time

    note("start", cell)
    if cell["n"] == 1:  # as the kernel does where memory has run out
        parents = psutil.Process().parents()
        names = [process.name() for process in parents]
        for process in reversed(parents[: names.index("slurmstepd")]):
            process.kill()
        time.sleep(60)
    return done(cell)
"""


def killer(folder: Path, slurm: LocalSlurm) -> Ran:
    space = one_job(folder, slurm)
    side_file = folder / "executions"
    space.only()
    space.add_experiment("killer", faulty.source("killer", side_file, KILLER), n=[0, 1, 2])
    return Ran(space, space.finish(), "", side_file)


def spread(folder: Path, slurm: LocalSlurm) -> Ran:
    space = OnSlurm(folder, slurm, max_jobs=2, nodes=["node2", "node1"])
    side_file = space.add_sleeping(cells=6, seconds=0.5)
    return Ran(space, space.finish(), "", side_file)


def refused(folder: Path, slurm: LocalSlurm) -> Ran:
    space = OnSlurm(folder, slurm, partition="nowhere")
    side_file = space.add_sleeping(cells=1, seconds=0)
    run = space.begin()
    assert run.wait(RUN_S) == 1, tail(run.log())
    return Ran(space, run.log(), "", side_file)


SCENARIOS: tuple[Callable[[Path, LocalSlurm], Ran], ...] = (
    time_limit,
    killer,
    kill_9,
    scancel,
    requeue,
    interrupt,
    spread,
    refused,
)


@pytest.fixture(scope="module")
def ran(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ran]]:
    """What each scenario gave; all are started with the first that is asked for."""
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        given = {one: pool.submit(one, folder / one.__name__, slurm) for one in SCENARIOS}
        yield lambda one: given[one].result()


def test_scancel_in_mid_run_costs_one_cell(ran: Callable[..., Ran]) -> None:
    run = ran(scancel)
    assert [run.states[job] for job in run.jobs] == ["CANCELLED", "COMPLETED"] and run.jobs[0] == run.job
    assert f"'{run.job}' failed, SLURM status is: 'CANCELLED'" in run.log
    assert "logs/local/measure_slow_0.log" in run.log  # where the job's own words stand
    assert set(run.ended.values()) == {1} and len(run.ended) == 4 and run.lost <= 1
    assert [row["status"] for row in run.space.rows("slow")] == ["ok"] * 4


def test_a_job_that_its_time_limit_ends_is_taken_up_again(ran: Callable[..., Ran]) -> None:
    run = ran(time_limit)
    assert [run.states[job] for job in run.jobs] == ["TIMEOUT", "COMPLETED"]
    assert set(run.ended.values()) == {1} and len(run.ended) == 4 and run.lost <= 1


def test_a_requeued_job_goes_on_from_its_journal(ran: Callable[..., Ran]) -> None:
    run = ran(requeue)
    assert run.jobs == [run.job] and run.states[run.job] == "COMPLETED"
    assert set(run.ended.values()) == {1} and len(run.ended) == 4 and run.lost == 1
    assert "Restarts=1" in run.space.slurm.ask("scontrol", "show", "job", run.job)


def test_kill_9_of_the_driver_and_the_same_command_again(ran: Callable[..., Ran]) -> None:
    run = ran(kill_9)
    assert "Lock" not in run.log and len(run.jobs) == 1 and run.job not in run.jobs
    assert set(run.states.values()) == {"COMPLETED"}
    assert set(run.ended.values()) == {1} and len(run.ended) == 4 and not run.lost  # the first job's cells count


def test_ctrl_c_cancels_the_jobs(ran: Callable[..., Ran]) -> None:
    run = ran(interrupt)
    assert run.states[run.job] == "CANCELLED" and len(run.jobs) == 1
    assert set(run.ended.values()) == {1} and len(run.ended) == 4 and run.lost <= 1


def test_a_cell_that_kills_its_job_twice_is_failed(ran: Callable[..., Ran]) -> None:
    run = ran(killer)
    rows = [(row["status"], row["reason"]) for row in run.space.rows("killer")]
    assert rows == [("ok", ""), ("failed", "killed its job twice"), ("ok", "")]
    assert [run.states[job] for job in run.jobs] == ["FAILED", "FAILED", "COMPLETED"]
    assert faulty.notes(run.side_file) == {"killer 0": 1, "killer 1": 2, "killer 2": 1}


def test_cells_spread_over_jobs_and_nodes_that_are_pinned(ran: Callable[..., Ran]) -> None:
    run = ran(spread)
    assert len(run.jobs) == 2 and set(run.ended.values()) == {1}
    folder = run.space.root / "results" / "local"
    shards = [json.loads(path.read_text())["cells"] for path in sorted(folder.glob("plan/measure-slow-*"))]
    assert [[cell["factors"]["n"] for cell in cells if not cell["skip"]] for cells in shards] == [[0, 2, 4], [1, 3, 5]]
    records = [path.read_text().splitlines() for path in sorted(folder.glob("records/slow/*"))]
    nodes = [{json.loads(line)["provenance"]["node"] for line in lines} for lines in records]
    assert nodes == [{"node2"}, {"node1"}]


def test_what_cannot_be_submitted_is_told_in_slurms_words(ran: Callable[..., Ran]) -> None:
    run = ran(refused)
    assert "invalid partition specified: nowhere" in run.log and not run.jobs


def test_a_node_that_goes_down_in_mid_run(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Slurm itself queues the job again; behind all runs that share the cluster."""
    space = OnSlurm(tmp_path / "a", slurm, max_jobs=1)
    side_file = space.add_sleeping(cells=4, seconds=1.5)
    run = space.begin()
    job, node = space.after(side_file, 2)
    slurm.fail(node)
    try:
        wait_for(lambda: slurm.node_states()[node].startswith("down"), 60, f"{node} is known to be down")
        wait_for(lambda: slurm.jobs()[job][0] == "PENDING", 60, "the job is queued again")
        slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # else in two minutes
        assert run.wait(RUN_S) == 0, tail(run.log())
    finally:
        slurm.heal(node)
    ended = faulty.notes(side_file, "end")
    assert set(ended.values()) == {1} and len(ended) == 4 and lost(side_file).total() == 1
    nodes = [row["provenance"]["node"] for row in space.rows("slow")]
    assert set(nodes) == {"node1", "node2"} and nodes[:2] == [node] * 2


def test_a_job_that_another_partition_takes_the_node_from(slurm: LocalSlurm, tmp_path: Path) -> None:
    space = OnSlurm(tmp_path / "a", slurm, max_jobs=1)
    side_file = space.add_sleeping(cells=4, seconds=1.5)
    run = space.begin()
    job, node = space.after(side_file, 2)
    assert slurm.ask("srun", "-p", "urgent", "--exclusive", "-w", node, "hostname", timeout_s=90).endswith(node)
    wait_for(lambda: slurm.jobs()[job][0] != "COMPLETING", 60, "the job is queued again")
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert run.wait(RUN_S) == 0, tail(run.log())
    ended = faulty.notes(side_file, "end")
    assert set(ended.values()) == {1} and len(ended) == 4 and lost(side_file).total() <= 1
    assert jobs_of(run.log()) == [job] and "Restarts=1" in slurm.ask("scontrol", "show", "job", job)


def test_a_self_test_is_made_on_the_node_of_the_job_that_waits_for_it(slurm: LocalSlurm, tmp_path: Path) -> None:
    space = OnSlurm(tmp_path / "gated", slurm)
    test_gate.set_up(space, threshold=50_000)
    run = space.begin()
    assert run.wait(RUN_S) != 0, tail(run.log())
    nodes = {row["factors"]["world_size"]: row["provenance"]["node"] for row in space.rows("trained")}
    ends = test_gate.ends(space, "trained")
    assert set(ends) == {1, 2, 3} and ends[1] == "ok"
    for world in (2, 3):
        assert f"skipped preflight 46: all-reduce of 0.25 MiB among {world} ranks on {nodes[world]} " in ends[world]
    assert "preflight 46: " in run.log() and "preflight 46: " in space.report()


def test_states_that_were_met(ran: Callable[..., Ran], slurm: LocalSlurm) -> None:
    for one in SCENARIOS:
        ran(one)
    print("states of jobs that were met:", *sorted(slurm.met))
    assert {"PENDING", "RUNNING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"} <= slurm.met


# --- with accounting ------------------------------------------------------------------------------------------------

HUNGRY = """def cells(config):
    return [Cell({"n": n}, cost=n) for n in config["n"]]


def run(cell):
    import time

    note("start", cell)
    if cell["n"] == 1:
        kept = bytearray(900 * 2**20)
        for _ in range(600):
            kept[:: 4096] = bytes(len(kept[:: 4096]))
            time.sleep(0.1)
    return done(cell)
"""


@pytest.fixture
def accounting() -> Iterator[LocalSlurm]:
    with cluster(accounting=True) as up:
        yield up


def test_with_accounting_and_a_job_that_is_killed_for_its_memory(accounting: LocalSlurm, tmp_path: Path) -> None:
    space = OnSlurm(tmp_path / "a", accounting, account="test", mem_mb=600, max_jobs=1)
    space.only()
    space.add_experiment("hungry", faulty.source("hungry", tmp_path / "executions", HUNGRY), n=[0, 1, 2])
    log = space.finish()
    by_row = [(row["status"], row["reason"]) for row in space.rows("hungry")]
    assert [status for status, _ in by_row] == ["ok", "failed", "ok"], (by_row, tail(log))

    def accounted() -> list[list[str]]:
        said = accounting.ask("sacct", "--noheader", "--parsable2", "--format=JobID,Account,State").splitlines()
        rows = [line.split("|") for line in said]
        whole = [row for row in rows if "." not in row[0]]
        return rows if len(whole) == len(jobs_of(log)) and whole[-1][1:] == ["test", "COMPLETED"] else []

    rows = wait_for(accounted, 20, "sacct's rows")
    assert {account for _, account, _ in rows} == {"test"}
    killed = [state for job, _, state in rows if job.endswith(".0") and state != "COMPLETED"]
    assert killed == ["CANCELLED by 0"] * 2, rows  # slurmd ended both steps that took more than their memory


def test_a_cluster_leaves_nothing_behind_and_does_not_meet_others(slurm: LocalSlurm) -> None:
    with LocalSlurm(nodes=1) as other:
        assert other.ask("srun", "-n1", "hostname") == "node1" and set(slurm.node_states()) == {"node1", "node2"}
        pids = [process.pid for process in other._processes.values()]
    assert not other.folder.exists() and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    assert other.name not in left and slurm.name in left
