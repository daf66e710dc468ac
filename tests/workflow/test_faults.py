"""Whole reports over cells and experiments that fail, runs that are told to stop, and two runs at once."""

import os
import re
import signal
from pathlib import Path

import faulty
import pytest
import sessions
from sessions import wait_for
from workspace import Workspace

from perfscribe.base import files
from perfscribe.records.form import STATUSES
from perfscribe.run import session

# On a loaded machine processes take long to start and to end; a cell of faulty.WAITING that nobody stops takes longer.
BEGIN_S, STOP_S = 180, 30  # beside other tests, in a new environment, 10 s were too few once
# What each cell of faulty.FAULTS ends as: status, beginning of the reason, executions.
ENDS = {
    "fine": ("ok", "", 1),
    "numpy_oom": ("oom", "Unable to allocate 1.00 PiB for an array", 2),
    "bare_oom": ("oom", "MemoryError", 1),  # in a fresh process, as numpy_oom came before
    "kills_its_job": ("failed", "killed its job twice", 2),
    "segfault": ("failed", "died by SIGSEGV", 2),
    "raises": ("failed", "ValueError: a bad value", 1),
    "raises_no_unicode": ("failed", "OSError: no such file: ?", 1),
    "exits": ("failed", "left with exit code 3", 2),
    "prints": ("ok", "", 1),
    "gives_nan": ("failed", "ValueError: time_ms holds a sample that is not finite", 1),
    "gives_nothing": ("failed", "ValueError: run(cell) gave neither samples nor values", 1),
    "gives_an_object": ("failed", "TypeError: Object of type object is not JSON serializable", 1),
    "unsupported": ("unsupported", "needs a quantum computer", 1),
}
# Kinds of their errors by status; other cells fail by an exception or, executed twice, by their process's death.
KINDS = {"ok": None, "oom": "out_of_memory", "unsupported": "unsupported"}

# The report's process reads the cells from this module; the child cannot.
CANNOT_BE_IMPORTED = """import sys

from perfscribe.base.cells import Cell

if sys.argv[0].endswith("child.py"):
    import no_such_library


def cells(config):
    return [Cell({"n": n}) for n in config["n"]]
"""


def side_of(workspace: Workspace) -> Path:
    return workspace.root / "side"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path / "root")
    made.only()
    return made


def add_faults(workspace: Workspace, experiment: str, what: list[str]) -> None:
    source = faulty.source(experiment, side_of(workspace), faulty.FAULTS)
    workspace.add_experiment(experiment, source, what=what)


def add_waiting(workspace: Workspace) -> None:
    workspace.add_experiment("probe", faulty.source("probe", side_of(workspace), faulty.WAITING), n=[0, 1, 2])


def running(workspace: Workspace, *arguments: str) -> sessions.Process:
    return sessions.running(
        workspace.command(*arguments), workspace.root, workspace.environment(), workspace.root / "out.log"
    )


def test_a_report_with_every_fault_succeeds(workspace: Workspace) -> None:
    add_faults(workspace, "faults", list(ENDS))
    add_faults(workspace, "hanging", ["fine", "hang", "fine_too"])
    workspace.set_config("experiments: {hanging: {timeout_s: 2}}\n")
    told = workspace.succeed("report")
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "report: report/local/report.md"
    assert [row["status"] for row in workspace.rows("hanging")] == ["ok", "timeout", "ok"]
    assert workspace.rows("hanging")[1]["provenance"]["error"]["kind"] == "timeout"
    report, rows = workspace.report(), {row["factors"]["what"]: row for row in workspace.rows("faults")}
    assert "timeout: longer than 2 s" in report
    for what, (status, reason, executions) in ENDS.items():
        assert rows[what]["status"] == status and rows[what]["reason"].startswith(reason)
        assert faulty.notes(side_of(workspace))[f"faults {what}"] == executions
        assert what == "kills_its_job" or rows[what]["provenance"]["attempts"] == executions
        assert f"faults what={what}: " in told, "told as it happened"
        shown = re.search(rf"^\| {what} +\|(.*)$", report, re.MULTILINE)
        assert shown and [word for word in STATUSES if word in shown[1]] == ([status] if status != "ok" else [])
        assert (reason if status != "oom" else "oom: asked for ") in report
        kind = KINDS.get(status, "died" if executions == 2 else "exception")
        assert rows[what]["provenance"].get("error", {}).get("kind") == kind
    assert rows["numpy_oom"]["provenance"]["error"]["requested_bytes"] == 1 << 50
    assert "traceback" in rows["raises"]["provenance"]["error"]


def test_an_experiment_of_which_nothing_worked(workspace: Workspace) -> None:
    add_faults(workspace, "broken", ["raises", "exits", "gives_nan"])
    workspace.add_experiment("unimportable", f'"""Cells."""\n{CANNOT_BE_IMPORTED}', n=[1, 2])
    add_faults(workspace, "sound", ["fine", "raises"])
    errors = (
        "broken: all 3 cells failed; first: what=raises: failed: ValueError: a bad value",
        "unimportable: all 2 cells failed; first: n=1: failed: cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_library'",
    )
    first = workspace.run("report")
    executions = faulty.notes(side_of(workspace))
    second = workspace.run("report")
    for done in (first, second):
        assert done.returncode == 1
        assert [done.stdout.splitlines().count(error) for error in errors] == [1, 1], done.stdout
        assert "Traceback" not in done.stdout
    assert len(second.stdout.splitlines()) <= 5, "the two errors, where the log lies, and the report twice"
    once = dict.fromkeys(("broken raises", "broken gives_nan", "sound fine", "sound raises"), 1)
    assert faulty.notes(side_of(workspace)) == executions == {**once, "broken exits": 2}
    assert "cannot be imported" in workspace.report() and "a bad value" in workspace.report()


def test_a_run_told_to_stop_ends_soon_and_the_next_one_finishes(workspace: Workspace) -> None:
    """Told by a signal to `./run` alone, as a supervisor sends it; a terminal's goes nowhere else either."""
    add_waiting(workspace)
    side = side_of(workspace)
    files.write_text(workspace.root / "report" / "local" / "report.md", "of a run before\n")
    stops = ((signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT))
    for times, numbers in enumerate(stops, start=1):
        with running(workspace, "report") as run:
            wait_for(lambda times=times: faulty.notes(side).total() == times + 1, BEGIN_S)
            for number in numbers:
                run.signal_group(number)
            wait_for(lambda run=run: not run.members(), STOP_S if len(numbers) == 1 else 3)
            if numbers[0] == signal.SIGHUP:  # it ends `./run` as any program whose terminal is gone
                assert run.wait() == -signal.SIGHUP, run.log()
                continue
            assert run.wait() == 128 + numbers[0], run.log()
            assert run.log().endswith("finished cells are kept\n"), run.log()
            assert "Traceback" not in run.log()
            if numbers[0] == signal.SIGTERM:
                assert "(of the run before; this one did not finish, see above)" in run.log()
    with running(workspace, "--cores", "1", "report") as run:  # Snakemake itself, which by itself waits for its jobs
        wait_for(lambda: faulty.notes(side).total() == 5, BEGIN_S)
        os.kill(run.pid, signal.SIGTERM)
        wait_for(lambda: not run.members(), STOP_S)
        assert run.wait() == 1, run.log()
    assert faulty.notes(side, "end") == {"probe 0": 1}, "the cell in flight was ended"
    faulty.let_end(side, 3)
    workspace.succeed("report")
    assert [row["status"] for row in workspace.rows("probe")] == ["ok"] * 3, "a fifth start is given"
    assert faulty.notes(side) == {"probe 0": 1, "probe 1": 5, "probe 2": 1}


def test_the_second_of_two_runs_says_whose_the_first_is(workspace: Workspace) -> None:
    add_waiting(workspace)
    with running(workspace, "report") as first:
        wait_for(lambda: faulty.notes(side_of(workspace))["probe 1"], BEGIN_S)
        second = workspace.run("report", timeout_s=BEGIN_S)
        assert second.returncode == 1
        assert re.fullmatch(
            r"run: another run is under way in this checkout: process \d+ of \S+ on \S+, since [-0-9]+ [:0-9]+\n",
            second.stdout,
        )
        owner = int(re.search(r"process (\d+)", second.stdout)[1])
        assert owner in [process.pid for process in first.members()]
        single = workspace.run("results/local/records/probe/0.jsonl", "--forcerun", "measure", timeout_s=BEGIN_S)
        assert single.returncode == 1 and single.stdout.endswith(second.stdout)
        retire = workspace.run("remeasure", "probe")
        assert retire.returncode == 1 and retire.stdout == second.stdout
        look = workspace.run("--dry-run", "--quiet", "--cores", "1")
        assert look.returncode == 0, "to look is allowed"
        other = workspace.run("report", "--config", "experiments={probe: {shards: 2}}", timeout_s=BEGIN_S)
        assert other.returncode == 1 and other.stdout == second.stdout, "its plan is another"
        faulty.let_end(side_of(workspace), 3)
        assert first.wait(BEGIN_S) == 0, first.log()
    with session.alone(workspace.root):  # as a run of another site has it: here everything is done
        edited = workspace.run("report", "--config", "seed=1", timeout_s=BEGIN_S)
        assert edited.returncode == 1 and "another run is under way" in edited.stdout, "an edit is due"
    assert [row["status"] for row in workspace.rows("probe")] == ["ok"] * 3
    assert set(faulty.notes(side_of(workspace)).values()) == {1}
