"""The worker: what each kind of cell ends as, what is measured again and what is not, and how its processes end."""

import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faulty
import pytest
from fake_nvml import FakeNvml
from sessions import wait_for
from shards import ShardJob

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.distributed import failures
from perfscribe.instruments import nvml
from perfscribe.plan import capabilities
from perfscribe.records import checksums, libraries, machine
from perfscribe.run import child, host_memory, processes, session
from perfscribe.run.shard import CLOCK

MakeJob = Callable[[str], ShardJob]


@pytest.fixture
def side(tmp_path: Path) -> Path:
    return tmp_path / "side"


@pytest.fixture
def job(tmp_path: Path, side: Path) -> MakeJob:
    """Makes the job of cells with this body."""
    return lambda body: ShardJob(tmp_path / "root", faulty.source("probe", side, body))


def sleeping(seconds: float = 0.0) -> str:
    """Cells that take so long."""
    return faulty.SLEEPING.replace("SECONDS", f"({seconds},)")


def numbered(count: int, **fields: Any) -> list[Cell]:
    return [Cell({"n": n}, **fields) for n in range(count)]


def statuses(rows: list[dict[str, Any]]) -> list[str]:
    return [row["status"] for row in rows]


# --- how cells end ----------------------------------------------------------------------------------------------


LOADERS = """Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "loop.py", line 1, in fetch
FileNotFoundError: no such file: x.npy
"""
COMPILERS = "raised:\nCppCompileError: C++ compile error\n\nOutput:\na.cpp:2:10: fatal error: Python.h: No such file"
COMMANDS = "g++ -x c++-header a.h -o a.gch\n\na.h:1: warning: x\ng++: internal compiler error: File size limit exceeded"
TORCHRUNS = """[rank1]: Traceback (most recent call last):
[rank1]: KeyError: 'PMI_RANK'
[rank1]: During handling of the above exception, another exception occurred:
[rank1]: Traceback (most recent call last):
[rank1]: ValueError: nothing tells the rank
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
============================================================"""
SRUNS = (
    "srun: job 5 queued\nsrun: error: Unable to create step: Invalid job\nsrun: error: task 0: Exited with exit code 1"
)
MPIEXECS = f"{'-' * 74}\nNo network interfaces were there for messages.\n{'-' * 74}"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(LOADERS), "RuntimeError: FileNotFoundError: no such file: x.npy"),
        (RuntimeError(COMPILERS), "RuntimeError: raised: a.cpp:2:10: fatal error: Python.h: No such file"),
        (RuntimeError(COMMANDS), "RuntimeError: g++: internal compiler error: File size limit exceeded"),
        (RuntimeError("Failed because of:\nNo module named x"), "RuntimeError: Failed because of: No module named x"),
        (
            subprocess.CalledProcessError(1, ["gcc", "a.c"], stderr=b"In file a.c:\na.c:1: error: no x"),
            "CalledProcessError: gcc ended with exit status 1: a.c:1: error: no x",
        ),
        (
            failures.error_of(failures.Ending(1, f"RuntimeError: {LOADERS.splitlines()[0]}", 0.0, details=LOADERS), 2),
            "RankError: rank 1 of 2: FileNotFoundError: no such file: x.npy",
        ),
        (TORCHRUNS, "RankError: mpiexec left with exit code 1: ValueError: nothing tells the rank"),
        (SRUNS, "RankError: mpiexec left with exit code 1: srun: error: Unable to create step: Invalid job"),
        (MPIEXECS, "RankError: mpiexec left with exit code 1: No network interfaces were there for messages."),
    ],
)
def test_a_reason_is_the_cause_however_it_was_wrapped(error: str | Exception, reason: str) -> None:
    if isinstance(error, str):  # what a launcher had printed
        error = failures.error_of_launcher("mpiexec left with exit code 1", error.splitlines())
    assert child.failure(error)["reason"] == reason


PARTIAL = """def run(cell):
    from perfscribe.base.partial import kept_on_failure

    measurement = done(cell)
    measurement.samples["late_ms"] = [float("nan")] if cell["what"] == "spoilt" else [1.0]
    with kept_on_failure(measurement):
        raise MemoryError if cell["what"] != "bad" else ValueError("late")
"""


def test_what_was_measured_before_a_failure_is_kept(job: MakeJob) -> None:
    probe = job(PARTIAL)
    probe.plan([Cell({"what": what}) for what in ("oom", "bad", "spoilt")])
    oom, bad, spoilt = probe.measure()
    assert (oom["status"], oom["samples"]["late_ms"]) == ("oom", [1.0])
    assert (bad["status"], bad["samples"]["late_ms"]) == ("failed", [1.0])
    assert (spoilt["status"], spoilt["samples"], spoilt["values"]) == ("oom", {}, {})


def test_out_of_memory_is_tried_again_only_after_other_cells_and_not_in_later_rounds(job: MakeJob) -> None:
    probe = job(PARTIAL)
    probe.plan([Cell({"what": what}) for what in ("bad", "oom", "oom too")], rounds=3)
    rows = probe.measure()
    assert statuses(rows) == ["failed", "oom", "oom"] * 3
    assert [row["provenance"]["attempts"] for row in rows] == [1, 2, 1, 1, 0, 0, 1, 0, 0]
    assert rows[4]["reason"] == "out of memory in an earlier round" and not rows[4]["samples"]
    assert probe.measure() == rows, "nothing is due"


GREEDY = """def run(cell):
    note("start", cell)
    blocks = [bytearray(16 << 20) for _ in range(cell["n"])]
    return done(cell, blocks=len(blocks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")
def test_the_limit_of_memory_makes_oom(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "limit_bytes", lambda: 256 << 20)
    probe = job(GREEDY)
    probe.plan([Cell({"n": 4}), Cell({"n": 20}), Cell({"n": 5})])
    assert statuses(probe.measure()) == ["ok", "oom", "ok"]


# --- processes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("isolation", "processes"), [("job", 2), ("cell", 6)])
def test_rounds_are_interleaved_in_fresh_processes(job: MakeJob, side: Path, isolation: str, processes: int) -> None:
    probe = job(sleeping())
    probe.plan(numbered(3), rounds=2, isolation=isolation)
    rows = probe.measure()
    order = [line.split()[3] for line in side.read_text().splitlines() if line.startswith("start")]
    assert order == ["0", "1", "2"] * 2
    used = faulty.processes(side)
    assert len(set(used)) == processes and not set(used[:3]) & set(used[3:])
    assert [(row["round"], row["factors"]["n"]) for row in rows] == [(r, n) for r in (1, 2) for n in range(3)]


def test_a_child_that_is_killed_while_it_imports_is_started_once_more(job: MakeJob, side: Path) -> None:
    once = f"if not os.path.exists({str(side)!r}):\n    open({str(side)!r}, 'w').close()\n    os.kill(os.getpid(), 9)\n"
    probe = job(faulty.FAULTS + once)
    probe.plan([Cell({"what": "fine"}), Cell({"what": "fine_too"})])
    assert statuses(probe.measure()) == ["ok", "ok"]


def test_a_worker_that_dies_without_starting_a_cell_is_not_started_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert processes.supervise(dies, tmp_path) == 128 + signal.SIGKILL
    assert capfd.readouterr().err == "the worker died by SIGKILL before its first cell; run it again\n"


RANK_OF = """def run(cell):
    from accelerate import PartialState

    return done(cell, ranks=PartialState(cpu=True).num_processes, told=os.environ.get("NCCL_DEBUG", ""))
"""


def test_cells_are_no_ranks_of_the_launch_that_a_shell_is_part_of(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, text in {**told, "PMI_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2", "NCCL_DEBUG": "WARN"}.items():
        monkeypatch.setenv(name, text)
    probe = job(RANK_OF)
    probe.plan([Cell({"n": 1})], timeout_s=20)
    assert [row["values"] for row in probe.measure()] == [{"ranks": 1, "told": "WARN"}]


LOADING = """def run(cell):
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(torch.arange(4), num_workers=1, multiprocessing_context="fork")
    return done(cell, total=int(sum(loader)))
"""


def test_interfaces_of_another_machine_do_not_count(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's shell start names its own, without which gloo and NCCL refuse every launch."""
    lo = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    given = {
        "GLOO_SOCKET_IFNAME": ("hsn0", None),
        "NCCL_SOCKET_IFNAME": ("hsn,ib", None),
        "NCCL_OOB_NET_IFNAME": ("^docker,hsn0", "^docker,hsn0"),  # all but these
        "TP_SOCKET_IFNAME": (f"hsn0,{lo}", lo),
        "OMPI_MCA_btl_tcp_if_include": ("10.0.0.0/8", "10.0.0.0/8"),
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1", None),
    }
    for name, (text, _) in given.items():
        monkeypatch.setenv(name, text)
    probe = job("def run(cell):\n    return done(cell, **os.environ)\n")
    probe.plan(numbered(1))
    (row,) = probe.measure()
    assert {name: row["values"].get(name) for name in given} == {name: kept for name, (_, kept) in given.items()}
    assert "GLOO_SOCKET_IFNAME" not in row["provenance"]["variables"]


@pytest.mark.parametrize("name", ["x", "long" * 20])
def test_a_loader_has_its_workers_however_long_tmpdir_is_and_nothing_stays_there(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The child is killed, so that it cannot remove its fork server's socket."""
    with tempfile.TemporaryDirectory(dir="/tmp", suffix=name) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # not read yet
        probe = job(f"PRELOADED = ('json',)\n\n\n{LOADING}")
        probe.plan([Cell({"n": 1})], timeout_s=20)
        assert statuses(probe.measure()) == ["ok"]
        assert not list(Path(folder).iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
def test_no_child_outlives_its_worker(job: MakeJob, side: Path) -> None:
    probe = job(faulty.WAITING)
    probe.plan(numbered(2))
    with probe.running() as process:
        wait_for(lambda: faulty.notes(side)["probe 1"])
        worker, child = process.member("--worker"), process.member("perfscribe.run.child")
        assert worker and child
        worker.kill()
        wait_for(lambda: child.pid not in [member.pid for member in process.members()], 5)
        faulty.let_end(side, 2)
        assert process.wait() == 0, process.log()
    assert statuses(probe.rows()) == ["ok", "ok"]
    assert faulty.notes(side) == {"probe 0": 1, "probe 1": 2}


# --- what stands and what is measured again ---------------------------------------------------------------------


def edit(probe: ShardJob) -> None:
    """Code of the experiment that is not as it was."""
    with open(probe.root / "perfscribe" / "experiments" / "cs336" / "probe" / "measure.py", "a") as source:
        source.write("\nEDITED = True\n")


def test_other_data_code_or_seed_measure_again(job: MakeJob, side: Path) -> None:
    probe, cells = job(sleeping()), [Cell({"n": 0}, data=("words",)), Cell({"n": 1})]
    probe.plan(cells, datasets=["words"])
    digest = probe.site / "data" / "words.digest"
    digest.parent.mkdir(parents=True)
    for arrays in ("aa", "aa", "bb"):
        digest.write_text(f'{{"arrays": "{arrays}"}}')
        probe.measure()
    assert faulty.notes(side) == {"probe 0": 2, "probe 1": 1}
    edit(probe)
    for seed in (0, 7):
        probe.plan(cells, datasets=["words"], seed=seed)
        probe.measure()
    assert faulty.notes(side) == {"probe 0": 4, "probe 1": 3}


def test_code_that_was_edited_after_planning_is_not_measured_for_what_was_planned(job: MakeJob, side: Path) -> None:
    """Taking the edit back would bring its figures under the old code's name."""
    probe = job(sleeping())
    probe.plan([Cell({"n": 0})])
    edit(probe)
    assert statuses(probe.measure()) == ["not_run"] and not faulty.notes(side)
    assert "its code has changed" in next(event["what"] for event in probe.events() if event["event"] == "waiting")
    probe.plan([Cell({"n": 0})])
    assert statuses(probe.measure()) == ["ok"]


EDITS = """def run(cell):
    with open(__file__, "a") as stream:
        stream.write("EDITED = True\\n")
    return done(cell)
"""


def test_an_edit_while_cells_run_leaves_the_rest_to_the_next_run(job: MakeJob) -> None:
    probe = job(EDITS)
    probe.plan(numbered(2))
    assert statuses(probe.measure()) == ["ok", "not_run"]


@pytest.mark.parametrize(
    ("policy", "again"),
    [("keep", {"bare_oom", "raises", "segfault"}), ("remeasure", {"fine", "bare_oom", "raises", "segfault"})],
)
def test_after_a_change_of_machine(job: MakeJob, monkeypatch: pytest.MonkeyPatch, policy: str, again: set[str]) -> None:
    probe = job(faulty.FAULTS)
    probe.plan([Cell({"what": w}) for w in ("fine", "bare_oom", "raises", "segfault")], on_identity_change=policy)
    before = {row["factors"]["what"]: row for row in probe.measure()}
    true = machine.identity
    monkeypatch.setattr(machine, "identity", lambda libraries: {**true(libraries), "driver_version": "999"})
    after = {row["factors"]["what"]: row for row in probe.measure()}
    assert {what for what in after if after[what]["id"] != before[what]["id"]} == again
    environments = {row["environment"] for row in after.values()}
    assert len(environments) == (2 if policy == "keep" else 1)
    assert all((probe.site / "environments" / f"{name}.json").is_file() for name in environments)
    monkeypatch.undo()
    assert {row["factors"]["what"]: row for row in probe.measure()} == before, "back on the first machine"


def test_figures_stand_where_a_machine_lacked_something_before(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = job(sleeping())
    probe.plan(numbered(1, requires=("hdf5",)))
    lacking = capabilities.Condition(lambda: False, "h5py is missing", "install h5py")
    with monkeypatch.context() as login_node:
        login_node.setitem(capabilities.CAPABILITIES, "hdf5", (lacking,))
        assert statuses(probe.measure()) == ["unsupported"]
    true = machine.identity
    with monkeypatch.context() as other:
        other.setattr(machine, "identity", lambda libraries: {**true(libraries), "driver_version": "999"})
        measured = probe.measure()
        assert statuses(measured) == ["ok"]
    monkeypatch.setitem(capabilities.CAPABILITIES, "hdf5", (lacking,))
    assert [row["id"] for row in probe.measure()] == [measured[0]["id"]], "back on the first machine"


def test_a_spent_time_budget_leaves_not_run(job: MakeJob, side: Path) -> None:
    probe = job(sleeping(0.4))
    probe.plan(numbered(6), budget_minutes=0.01)
    rows = probe.measure()
    ran = statuses(rows).count("ok")
    assert 1 <= ran < 6
    assert statuses(rows) == ["ok"] * ran + ["not_run"] * (6 - ran)
    assert {row["reason"] for row in rows[ran:]} == {"not measured yet"}, "true of a cell too large for the machine too"
    unit = {"measure-probe-0": "records/probe/0.jsonl"}
    assert not checksums.renew(probe.site, unit) and not (probe.site / unit["measure-probe-0"]).exists(), "due again"
    probe.plan(numbered(6))
    assert statuses(probe.measure()) == ["ok"] * 6
    assert set(faulty.notes(side).values()) == {1}


def test_the_budget_is_the_runs_in_minutes_not_each_jobs(job: MakeJob) -> None:
    probe = job(sleeping())
    probe.plan(numbered(2), budget_minutes=30)
    files.write_json(probe.root / CLOCK, {"budget_ends": time.time() - 1})
    assert statuses(probe.measure()) == ["not_run"] * 2
    run = SimpleNamespace(plan=SimpleNamespace(units={"measure-probe-0": {"budget_minutes": 30}}), root=probe.root)
    session.Session._start_clock(run)
    clock = files.read_json(probe.root / CLOCK)
    assert clock["budget_ends"] - clock["started"] == pytest.approx(1800, abs=5)
    assert statuses(probe.measure()) == ["ok"] * 2


def test_a_cell_draws_the_same_numbers_whatever_ran_before() -> None:
    drawn = [(child.reset_state(seed), random.random())[1] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


WITH_GPUS = """
from perfscribe.base.cells import Measurement


def run(cell):
    return Measurement(values={"gpus": cell["world_size"]})
"""


def test_the_worker_skips_them_and_takes_them_up_on_more_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ShardJob(tmp_path, WITH_GPUS)
    probe.plan([Cell({"world_size": n}, requires=(f"cuda:{n}",), cost=float(n)) for n in (2, 4, 6)])
    monkeypatch.setattr(libraries, "constants", lambda name: {"cuda": "13.0"})
    monkeypatch.setattr(libraries, "installed", lambda module: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = []
    for gpus in (0, 2, 2, 4):
        monkeypatch.setattr(nvml, "load", lambda gpus=gpus: FakeNvml(gpus) if gpus else None)
        told.append([(row["status"], row["reason"]) for row in probe.measure()])
    few, ok = ("skipped", "2 GPUs"), ("ok", "")
    none = [("unsupported", "no CUDA device")] * 3
    assert told == [none, [ok, few, few], [ok, few, few], [ok, ok, ("skipped", "4 GPUs")]]
    assert [event["event"] for event in probe.events()].count("record") == 8, "nothing new, nothing written"
