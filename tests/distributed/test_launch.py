"""Launches: results of real gloo ranks, and every way in which one of them can fail."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from sessions import wait_for

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import starting, transport, watching
from perfscribe.distributed.failures import RankError, RankOutOfMemory, RankTimeout, RankWrongResult
from perfscribe.distributed.launch import WorkerGroup, launch
from perfscribe.run.child import failure
from perfscribe.run.monitor import _own_cpu_s

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
# Of this process: launches' own server, and those of other tests in the same session.
SERVERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


def run(program: str, arguments: dict | None = None, world_size: int = 2, timeout_s: float = 60, **more) -> list:
    return launch(f"rank_programs:{program}", arguments or {}, world_size=world_size, timeout_s=timeout_s, **more)


def failing(error: type[Exception], program: str, arguments: dict | None = None, **more) -> str:
    """The text of the error that a launch ends with."""
    with pytest.raises(error) as caught:
        run(program, arguments, **more)
    assert type(caught.value) is error
    return str(caught.value)


def own_processes() -> dict[int, str]:
    """Command lines of this process's descendants by their number, but for fork servers themselves."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            is_server = process.parent().pid == os.getpid()
            line = " ".join(process.cmdline())
        except (psutil.Error, AttributeError):
            continue
        if not (is_server and any(server in line for server in SERVERS)):
            found[process.pid] = line
    return found


def open_ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="tcp")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.fixture(autouse=True)
def nothing_left():
    """Check that a launch leaves no ports or processes; those that earlier tests keep for the session do not count."""
    before, others = open_ports(), own_processes().keys()
    yield
    deadline = time.monotonic() + 30
    while own_processes().keys() - others and time.monotonic() < deadline:
        time.sleep(0.02)
    left = own_processes()
    assert left.keys() <= others, left
    assert open_ports() == before


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_result_a_rank_in_their_order(monkeypatch):
    world_size = 4
    monkeypatch.setenv("KEPT", "yes")
    for name, value in {"SLURM_PROCID": "7", "SLURM_STEP_ID": "0", "OMPI_COMM_WORLD_RANK": "3", "RANK": "9"}.items():
        monkeypatch.setenv(name, value)
    results = run("works", {"a": [1, "é"]}, world_size, seed=0)
    again = run("works", {"a": 1}, world_size, seed=0)
    assert [result["drawn"] for result in again] == [result["drawn"] for result in results]
    for number, result in enumerate(results):
        assert (result["sum"], result["arguments"]) == (sum(range(world_size)), {"a": [1, "é"]})
        place = {"rank": number, "world_size": world_size, "local_rank": number, "local_world_size": world_size}
        assert {**place, "source": "torchrun"}.items() <= result["place"].items()
        assert result["threads"] == max(1, len(os.sched_getaffinity(0)) // world_size)
        variables = {"RANK": str(number), "LOCAL_RANK": str(number), "SLURM_PROCID": None, "KEPT": "yes"}
        assert result["variables"] == variables
    assert all(len({result[name] for result in results}) == world_size for name in ("drawn", "pid"))


# --- what fails -------------------------------------------------------------------------------------------------

# Error, its text, and status and kind of the cell that it ends.
FAULTS = {
    "raises": (RankError, "rank 1 of 4: ValueError: a bad value", "failed", "exception"),
    "out_of_memory": (RankOutOfMemory, r"rank 1 of 4: RuntimeError: .*can't allocate memory.*", "oom", "out_of_memory"),
    "unsupported": (Unsupported, "needs a quantum computer", "unsupported", "unsupported"),
    "wrong": (RankWrongResult, "rank 1 of 4: the sum is off", "failed", "wrong_result"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_guilty_rank_is_named_with_its_first_line(fault):
    error, text, status, kind = FAULTS[fault]
    with pytest.raises(error) as caught:
        run("faulty", {"fault": fault}, world_size=4)
    assert type(caught.value) is error
    assert re.fullmatch(text, str(caught.value)), str(caught.value)
    answer = failure(caught.value)
    assert (answer["status"], answer["error"]["kind"]) == (status, kind)
    assert answer["reason"].removeprefix("RankError: ") == str(caught.value)
    if fault == "raises":
        assert "in _raise" in answer["error"]["traceback"]
    if fault == "out_of_memory":
        assert answer["error"]["requested_bytes"] == 2**50


@pytest.mark.parametrize(
    ("fault", "options", "why"),
    [
        ("hangs", {"world_size": 4, "timeout_s": 3}, r"no result after 3 s; at rank_programs\.py:\d+ in <lambda>"),
        ("holds_the_interpreter", {"timeout_s": 2}, "no result after 2 s; in code that does not let Python answer"),
    ],
)
def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it(fault, options, why, monkeypatch):
    monkeypatch.setattr(watching, "ANSWER_S", 0.5)
    text = failing(RankTimeout, "faulty", {"fault": fault}, **options)
    assert re.fullmatch(rf"rank 1 of \d hangs: {why}", text, re.DOTALL), text


def test_what_a_dead_rank_had_started_ends_with_it(tmp_path):
    pid_file = tmp_path / "pid"
    text = failing(RankError, "faulty", {"fault": "lingers", "pid_file": str(pid_file)}, world_size=4)
    assert text == "rank 1 of 4: died by SIGKILL"
    assert wait_for(lambda: has_ended(int(pid_file.read_text())))


def launcher(folder: Path, statement: str) -> subprocess.Popen:
    """A process that launches ranks."""
    script = folder / "launcher.py"
    imported = "from perfscribe.distributed.launch import WorkerGroup, launch"
    script.write_text(f"{imported}\nif __name__ == '__main__':\n    {statement}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, script], env=environment)


@LINUX
def test_no_rank_outlives_its_launcher(tmp_path):
    """Not even one in which no thread can run that would notice."""
    hanging = f"launch('rank_programs:writes_pids_and_hangs', {{'folder': {str(tmp_path)!r}}}"
    with launcher(tmp_path, f"{hanging}, world_size=2, timeout_s=60)") as process:
        files = [tmp_path / "0", tmp_path / "1"]
        assert wait_for(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), 60)
        process.kill()
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert wait_for(lambda: all(has_ended(pid) for pid in pids[::2]))
    for grandchild in pids[1::2]:  # those may outlive a rank that the kernel killed before it could tell them
        if not has_ended(grandchild):
            os.kill(grandchild, signal.SIGKILL)


def test_a_group_that_was_left_open_ends_with_its_launcher(tmp_path):
    left_open = "group = WorkerGroup('rank_programs:burns', world_size=2, timeout_s=60); group.ask({'seconds': 0})"
    with launcher(tmp_path, left_open) as process:
        assert process.wait(60) == 0


# --- what cannot be ---------------------------------------------------------------------------------------------


def test_a_machine_or_a_launcher_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert failing(Unsupported, "works", backend="nccl") == "torch is a build without nccl"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    text = failing(Unsupported, "works", world_size=4, backend="nccl")
    assert text == "4 processes need as many GPUs, 1 is here"
    assert failing(Unsupported, "works", launcher=["/nowhere/mpiexec.test", "-n", "2"]) == "no mpiexec.test here"


def test_a_launcher_that_starts_another_number_of_ranks(monkeypatch):
    """As mpiexec of one MPI with the library of another does: each process believes to be alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    text = failing(RankError, "works", launcher=[sys.executable, "-X", "utf8", "-m"])
    assert text == "a rank of 2: ValueError: asked for 2 ranks, but single process started 1"


def test_the_cpu_time_of_ended_ranks_stays_counted_as_this_process_s():
    """Otherwise a monitored window in which they end shows their time as the load of others."""
    run("burns", {"seconds": 0})  # starts the server
    before, others = _own_cpu_s(), own_processes().keys()
    run("burns", {"seconds": 0.6})
    assert wait_for(lambda: own_processes().keys() <= others)
    assert _own_cpu_s() - before >= 2 * 0.6


def test_strangers_are_sent_away(monkeypatch):
    monkeypatch.setattr(watching, "RECEIVE_S", 1)
    with (
        contextlib.closing(watching.RunningRanks(2, 2, transport.LOOPBACK)) as launched,
        contextlib.ExitStack() as held,
    ):
        launched.processes = starting.ForkedRanks({}, [])
        launched.processes.exit_code = lambda _: None
        host, port = launched.address.split(":")
        strangers = []
        for sent in (b"\0\0\0\x07guess 0", b"GET / HTTP/1.1\r\n\r\n", b"\0\0", b"x" * 9000, b""):
            strangers.append(held.enter_context(socket.create_connection((host, int(port)), timeout=5)))
            strangers[-1].sendall(sent)
        with pytest.raises(RankTimeout, match=r"^ranks 0, 1 of 2 never started: no result after 2 s$"):
            launched.ask({})
        for stranger in strangers[:-1]:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


# --- ranks that stay --------------------------------------------------------------------------------------------


def test_what_a_library_logs_is_there_with_the_result():
    """As NCCL logs: into the file that a variable names."""
    with WorkerGroup("rank_programs:stays", world_size=2, timeout_s=60, nccl_log=True) as ranks_that_stay:
        for count in (1, 2, 3):
            pids = ranks_that_stay.ask({"text": f"work {count}"})
            expected = [f"work {n} by rank {number}" for n in range(1, count + 1) for number in (0, 1)]
            assert sorted(ranks_that_stay.nccl_log) == expected
    assert all(wait_for(lambda pid=pid: has_ended(pid)) for pid in pids)
    ranks_that_stay.close()
