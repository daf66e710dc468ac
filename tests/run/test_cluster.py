"""Jobs on a cluster: how cells are dealt out, what each job asks for, what is recorded; without a scheduler."""

import asyncio
import atexit
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import hosts
from perfscribe.plan import cluster, plan
from perfscribe.plan.cluster import Cluster, Need
from perfscribe.run import slurm_jobs

RAW = config.load(ROOT / "config.yaml")


def settings(**own: Any) -> dict[str, Any]:
    """Settings of config.yaml with these values, as a run under Slurm has them."""
    return {**config.resolve(RAW, "cpu")["cluster"], "executor": "slurm", "max_nodes": 2, **own}


def test_nodes_that_are_down_or_drained_are_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\nprintf 'main* 0/2/0/2\\ngpu 4/5/1/10\\n'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for partition, nodes in ((None, 2), ("gpu", 9)):
        found = cluster.settings_for({"cluster": settings(max_nodes=None, partition=partition)}, "slurm")
        assert found is not None and found["max_nodes"] == nodes
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert cluster.nodes_of_partition(None) == 1


def test_cells_of_unlike_needs_go_to_unlike_jobs() -> None:
    cells = list(enumerate([Cell({"n": 1}), Cell({"n": 2}, requires=("cuda",)), Cell({"n": 3}, skip="left out")]))
    dealt = cluster.deal({"a": cells}, {"a": 1}, settings(gpus_per_node=4, max_jobs=1))["a"]
    places = {share.need: [place for place, _ in share.cells] for share in dealt}
    assert places == {Need(1, 0): [0, 2], Need(1, 1): [1]}


def test_a_plan_for_a_cluster_has_every_cell_once() -> None:
    alone = plan.build(RAW, "cpu", ROOT)
    made = plan.build(RAW, "cpu", ROOT, settings(max_jobs=60))
    assert sum(made.shards.values()) == 60 and alone.cluster is None
    for name in alone.shards:
        units = [made.units[f"measure-{name}-{shard}"] for shard in range(made.shards[name])]
        (whole,) = (alone.units[f"measure-{name}-{shard}"] for shard in range(alone.shards[name]))
        positions = [cell["position"] for unit in units for cell in unit["cells"]]
        assert sorted(positions) == sorted(cell["position"] for cell in whole["cells"])


def test_trainings_over_several_nodes_have_jobs_of_their_own() -> None:
    made = plan.build(RAW, "gpu", ROOT, settings(gpus_per_node=4, max_nodes=4))
    assert made.cluster is not None
    needs = made.cluster.needs["multi_gpu"]
    shards = [made.units[f"measure-multi_gpu-{shard}"]["cells"] for shard in range(len(needs))]
    assert {need.nodes for need in needs} == {1, 2, 4}  # eight nodes are more than the partition has
    assert {need.gpus for need in needs if need.nodes > 1} == {4}  # whole nodes, though a rank takes one GPU
    for need, cells in zip(needs, shards, strict=True):
        assert {min(4, cell["factors"]["nodes"]) for cell in cells if not cell["skip"]} == {need.nodes}


def jobs(*needs: Need, **own: Any) -> Cluster:
    return Cluster(settings(**own), {"a": needs})


def test_one_gpu_where_one_is_needed_and_whole_nodes_for_several() -> None:
    made = jobs(Need(1, 1), Need(1, 4), Need(2, 4), Need(2, 0), gpus_per_node=4)
    asked = [made.measuring_job("a", shard) for shard in range(4)]
    assert [job.get("gpu") for job in asked] == [1, 4, None, None]
    assert [job.get("gres") for job in asked] == [None, None, "gpu:4", None]
    assert [job.get("tasks") for job in asked] == [None, None, None, 2]
    assert [job["slurm_extra"] for job in asked] == [None, "--exclusive", "--exclusive", "--exclusive"]
    shared = jobs(Need(1, 0), Need(1, 1), exclusive=False, cores=8).measuring_job("a", 0)
    assert (shared["slurm_extra"], shared["cpus_per_task"]) == (None, 8)
    assert jobs(Need(1, 0), exclusive=False).measuring_job("a", 0)["cpus_per_task"] == 1


def test_what_the_user_says_of_the_cluster_reaches_every_job() -> None:
    said = {"account": "me", "partition": "fast", "time_minutes": 5, "constraint": "a100", "qos": "high", "mem_mb": 10}
    made = jobs(Need(1, 0), **said)
    for job in (made.small_job(), made.measuring_job("a", 0)):
        assert (job["slurm_account"], job["slurm_partition"], job["runtime"]) == ("me", "fast", 5)
        assert (job["constraint"], job["qos"], job["mem_mb"]) == ("a100", "high", 10)


def in_bash(script: str) -> list[str]:
    """Lines that the script prints where threads are limited as Snakemake leaves them."""
    limited = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True, env=limited).stdout.splitlines()


def test_a_jobs_shell_begins_with_variables_and_setup() -> None:
    odd = {"A": "it's $HOME {x}", "B": 7, "MKL_NUM_THREADS": 3, "PYTHONPATH": "/b"}
    made = jobs(environment=odd, setup=['GREETING="hello $UNSET"', "greet() { echo $GREETING; }"])
    threads = 'echo "$OMP_NUM_THREADS $MKL_NUM_THREADS"'
    printed = in_bash(made.prologue(Path("/a b")) + f'greet; echo "$A"; echo $B; echo "$PYTHONPATH"; {threads}')
    # Snakemake's own `set -euo pipefail` is replaced; all cores of the job, unless it is told.
    assert printed == ["hello", "it's $HOME {x}", "7", "/a b:/b", f"{len(os.sched_getaffinity(0))} 3"]
    assert in_bash(jobs(environment={"OMP_NUM_THREADS": 7}).prologue(ROOT) + threads) == ["7 7"], "of every library"
    assert in_bash(jobs(setup=["false", "true"]).prologue(ROOT) + "echo no") == []


def test_short_forms_of_hosts() -> None:
    names = ["a08", "a09", "a10", "a12", "b", "r1n0", "r1n1", "r2n0", "r2n1"]
    assert hosts.of_job({"SLURM_JOB_NODELIST": "a[08-10,12],b,r[1-2]n[0-1]"}) == names
    assert hosts.of_job({"SLURM_JOB_NODELIST": ""}) == []


def test_paths_that_jobs_would_misread_are_refused_and_others_taken() -> None:
    checkouts = [(name, "python") for name in ("50%", "a$b", "a`b", 'a"b', "a\\b", "a\nb")]
    environments = [("me", f"{name}/python") for name in ("a b", "p(1)", "p[1]", "it's", "a;b", "50%")]
    for checkout, python in [*checkouts, *environments]:
        with pytest.raises(ValueError, match=r"^[^\n]*give the folder another name[^\n]*$"):
            cluster.check_paths(Path("/home", checkout), Path("/home", python))
    odd = Path("/home/größe/é-1_2.3+4=5,6@7~8#9!^/\N{OK HAND SIGN}")
    cluster.check_paths(odd, odd / "python")
    cluster.check_paths(Path("/home/it's a (new) [one]"), Path("/usr/bin/python3"))


# --- the executor of Slurm's jobs, whose commands are stubs: answers that a real Slurm gives too seldom -----------


class Job(SimpleNamespace):
    """As Snakemake keeps one that was submitted."""

    __hash__ = object.__hash__


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Without Snakemake, for which .reports keeps what it is told; squeue prints the file `queue`, or fails."""
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/queue\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_jobs.plugin.Executor, "__init__", lambda *_: None)
    monkeypatch.setattr(slurm_jobs.plugin.Executor, "run_job_pre", lambda *_: None)
    own = slurm_jobs.Executor(None, None)
    settings = SimpleNamespace(init_seconds_before_status_checks=1, keep_successful_logs=False)
    own.workflow, own.run_uuid = SimpleNamespace(executor_settings=settings), "uuid"
    own.report_job_success = lambda info: own.reports.append((info.external_jobid, "success"))
    own.report_job_error = lambda info, msg, aux_logs: own.reports.append((info.external_jobid, msg))
    yield own
    atexit.unregister(own._cancel_unless_ended)


def submit(executor: Any, folder: Path, number: str) -> Job:
    info = Job(external_jobid=number, aux={"slurm_logfile": folder / f"{number}.log"})
    info.job = Job(output=[str(folder / f"{number}.jsonl")])
    executor.run_job_pre(info.job)
    return info


def look(executor: Any, *infos: Job) -> tuple[list[str], list[tuple[str, str]]]:
    """Numbers of the jobs that are still waited for, and what was reported of others."""

    async def left() -> list[str]:
        return [info.external_jobid async for info in executor.check_active_jobs(list(infos))]

    executor.reports = []
    return asyncio.run(left()), executor.reports


def test_a_job_that_slurm_has_forgotten_is_over_and_its_files_decide(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = tmp_path / "queue"
    (tmp_path / "2.jsonl").write_text("of the run before")
    made, stale, lacking, running = (submit(executor, tmp_path, number) for number in "1234")
    queue.write_text("4|RUNNING|None\n")
    assert look(executor, made, stale, lacking, running) == (["1", "2", "3", "4"], []), "files may be seen late"
    (tmp_path / "1.jsonl").write_text("of this one")
    queue.unlink()
    assert look(executor, made, running) == (["1", "4"], []), "squeue failed"
    queue.write_text("4|RUNNING|None\n")
    assert look(executor, made, running) == (["4"], [("1", "success")])
    monkeypatch.setattr(slurm_jobs, "FORGOTTEN_S", 0.0)
    left, reports = look(executor, stale, lacking, running)
    assert left == ["4"] and [number for number, _ in reports] == ["2", "3"]
    assert all("no longer known" in text for _, text in reports)


def test_variables_that_ask_slurm_for_something_reach_our_commands() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_QOS": "high", "SBATCH_WAIT_ALL_NODES": "1", "SQUEUE": "mine"}
    variables = {**kept, "SBATCH_WAIT": "1", "SBATCH_CLUSTERS": "far"}
    slurm_jobs.prepare(variables)
    assert variables == {**kept, "SLURM_CLUSTERS": "far"}
