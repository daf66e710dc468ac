"""`snakemake --profile slurm report` on a real Slurm of two nodes: whole runs, and ranks on both nodes."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_slurm import LocalSlurm, cluster
from on_slurm import OnSlurm, jobs_of
from test_launch_script import JOB, ranks_of, script

from perfscribe.plan import plan
from perfscribe.verbs import launch

ENDED_WELL = ("ok", "unsupported", "skipped")
# Of every kind of job: with data sets and without, of one process and of ranks, on one node and on two, tested before.
KINDS = ("all_reduce", "communication_nodes", "io_formats", "multi_gpu", "preflight")
MAX_JOBS = 8  # one more than these experiments' needs


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    with cluster(cpus=8) as up:
        yield up


@pytest.fixture(scope="module")
def whole(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> OnSlurm:
    """The project with the tiny preset, measured from a login node where torch cannot be imported."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a login node has no torch')\n")
    settings = {"environment": {"PYTHONPATH": ""}, "setup": ["export SEEN_IN_JOBS=yes"], "max_jobs": MAX_JOBS}
    space = OnSlurm(folder / "whole", slurm, **settings)
    space.only_enabled(*KINDS, multi_gpu={"world_size": [2, 4], "ranks_per_node": [1, 2]})
    space.finish(PYTHONPATH=str(folder))
    return space


def test_the_command_word_for_word(whole: OnSlurm) -> None:
    assert whole.report().startswith("# ")
    log = whole.output.read_text()
    assert log.count("report: report/local/report.md") == 1 and "a login node has no torch" not in log
    rows = [row for name in KINDS for row in whole.rows(name)]
    bad = [row for row in rows if row["status"] not in ENDED_WELL]
    assert not bad, [(row["experiment"], row["factors"], row["status"], row["reason"]) for row in bad]
    assert sum(row["status"] == "ok" for row in rows) > 4 * MAX_JOBS


def test_records_say_which_node_measured_and_both_did(whole: OnSlurm) -> None:
    every = [row for name in KINDS for row in whole.rows(name)]
    rows = [row for row in every if row["provenance"] and not row["values"].get("before_start")]  # that were started
    ran = {number: nodes for number, (_, nodes) in whole.slurm.jobs().items()}
    for row in rows:  # of a job on both nodes, node[1-2], the first
        of = row["provenance"]
        assert ran[of["slurm_job_id"]] in (of["node"], "node[1-2]") and of["node"] in ("node1", "node2")
    assert "node[1-2]" in {ran[row["provenance"]["slurm_job_id"]] for row in rows}
    submitted = jobs_of(whole.output.read_text())
    assert {row["provenance"]["slurm_job_id"] for row in rows} <= set(submitted)
    (said,) = {json.dumps(row["provenance"]["cluster"], sort_keys=True) for row in rows}
    settings = json.loads(said)
    assert (settings["executor"], settings["max_nodes"], settings["exclusive"]) == ("slurm", 2, True)
    assert settings["setup"] == ["export SEEN_IN_JOBS=yes"]


def test_jobs_are_few_and_not_for_what_is_only_shown(whole: OnSlurm) -> None:
    log = whole.output.read_text()
    made = plan.read_index(whole.root / "results" / "local" / "plan")
    assert sum(made.shards.values()) == MAX_JOBS and len(jobs_of(log)) == MAX_JOBS + len(made.datasets)
    assert set(state for state, _ in whole.slurm.jobs().values()) == {"COMPLETED"}


def test_a_second_run_starts_nothing(whole: OnSlurm) -> None:
    before, report = whole.slurm.jobs(), whole.report()
    log = whole.finish()
    assert "Nothing to be done" in log and not jobs_of(log)
    assert whole.slurm.jobs() == before and whole.report() == report


def test_the_row_of_real_nodes(whole: OnSlurm) -> None:
    rows = [row for row in whole.rows("communication_nodes") if row["factors"]["backend"] == "gloo"]
    (row,) = [row for row in rows if row["status"] != "skipped"]
    assert row["status"] == "ok" and "inter_transfer_ms" in row["samples"], row["reason"]
    assert row["watch"]["host_load_other"] is None, "srun's tasks, no descendants, would count as others' load"
    assert "tables/polaris.communication_nodes.csv" in whole.report()


def test_the_links_of_real_nodes_are_tried_before(whole: OnSlurm) -> None:
    gloo = [row for row in whole.rows("preflight") if row["factors"]["backend"] == "gloo"]
    rows = [row for row in gloo if row["factors"]["nodes"] > 1 and row["reason"] != "preset tiny"]
    ends = {row["factors"]["nodes"]: (row["status"], row["reason"]) for row in rows}
    assert ends.pop(2) == ("ok", "") and set(ends.values()) <= {("skipped", "2 nodes")}
    (row,) = [row for row in rows if row["status"] == "ok"]
    assert sorted(row["values"]["nodes"].split(", ")) == ["node1", "node2"]


def test_trainings_over_real_nodes_have_the_losses_of_one(whole: OnSlurm) -> None:
    """One rank on each of two nodes, and two on each; four nodes are more than the cluster has."""
    rows = [row for row in whole.rows("multi_gpu") if row["factors"]["backend"] == "gloo"]
    by_place = {(row["factors"]["nodes"], row["factors"]["world_size"]): row for row in rows}
    assert {row["reason"] for (nodes, _), row in by_place.items() if nodes > 2} == {"2 nodes"}
    for ranks in (2, 4):
        one, several = by_place[1, ranks], by_place[2, ranks]
        assert several["values"]["hosts"] == 2 and several["values"]["wrapped_by"] == "FSDP2"
        losses = several["series"]["train_loss"]
        assert losses == pytest.approx(one["series"]["train_loss"], rel=1e-5) and len(set(losses)) > 1


def test_a_job_script_on_two_nodes(slurm: LocalSlurm, tmp_path: Path) -> None:
    """The links are tried over both nodes, then the ranks train; with a threshold that nothing reaches, they do not."""
    text = script("slurm", "--gpus-per-node", "0", "--preflight", ranks=1, command=JOB)
    failing = text.replace(launch.SELF_TEST, f"{launch.SELF_TEST} --threshold 1e6")
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    told = []
    for number, job in enumerate((text, failing)):
        path, out = tmp_path / f"{number}.sh", tmp_path / f"{number}.txt"
        path.write_text(job)
        told.append((slurm.batch("-o", str(out), str(path), timeout_s=200, **variables), out.read_text()))
    (code, said), (code_below, said_below) = told
    assert code == 0, said
    assert "preflight 0: all-reduce of 16 MiB among 2 ranks on node1, node2 by gloo: busbw " in said
    assert ranks_of(said) == [(0, 2, 0), (1, 2, 0)], said
    assert "host node1" in said and "host node2" in said and said.count("by Slurm") == 2
    assert code_below == 46 and "trained" not in said_below, said_below
    assert said_below.count("preflight 46: all-reduce of 16 MiB among 2 ranks on node1, node2") == 1
