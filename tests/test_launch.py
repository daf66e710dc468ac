"""Launches: results of real gloo ranks, and every way in which one of them can fail."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection

import psutil
import pytest
from sessions import wait_for
from shards import ShardJob

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.distributed import failures, fork_server, rank, ranks, starting, watching
from perfscribe.distributed.channel import Event, Hub
from perfscribe.distributed.failures import DIED, RAISED, Ending, Frame, RankError, RankOutOfMemory, RankTimeout, Stack
from perfscribe.distributed.launch import Launched, WorkerGroup, launch, torchrun
from perfscribe.run.child import failure

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
# Of this process: launches' own server, and those of other tests in the same session.
SERVERS = ("perfscribe.distributed.fork_server", "multiprocessing.forkserver", "multiprocessing.resource_tracker")


def run(program: str, arguments: dict | None = None, world_size: int = 2, timeout_s: float = 60, **more) -> Launched:
    return launch(f"rank_programs:{program}", arguments or {}, world_size=world_size, timeout_s=timeout_s, **more)


def failing(kind: type[Exception], program: str, arguments: dict | None = None, **more) -> str:
    """The text of the error that a launch ends with."""
    with pytest.raises(kind) as caught:
        run(program, arguments, **more)
    assert type(caught.value) is kind
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
    """Of a launch: what earlier files' tests keep for the session was there before."""
    before, others = open_ports(), own_processes().keys()
    yield
    left = wait_until_gone(others)
    assert not left
    assert open_ports() == before


def wait_until_gone(others: Collection[int], timeout_s: float = 30) -> dict[int, str]:
    """Processes besides these that are still there then."""
    deadline = time.monotonic() + timeout_s
    while left := {pid: line for pid, line in own_processes().items() if pid not in others}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EXPLANATION_S", 0.5)


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- what works -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_one_result_a_rank_in_their_order(world_size, monkeypatch):
    monkeypatch.setenv("KEPT", "yes")
    for name, value in {"SLURM_PROCID": "7", "SLURM_STEP_ID": "0", "OMPI_COMM_WORLD_RANK": "3", "RANK": "9"}.items():
        monkeypatch.setenv(name, value)
    results = run("works", {"a": [1, "é"]}, world_size).results
    assert [one["place"]["rank"] for one in results] == list(range(world_size))
    for number, one in enumerate(results):
        assert one["sum"] == world_size * (world_size - 1) / 2
        assert one["arguments"] == {"a": [1, "é"]}
        place = one["place"]
        assert (place["world_size"], place["local_rank"], place["local_world_size"]) == (world_size, number, world_size)
        assert (place["node_rank"], place["source"]) == (0, "torchrun")
        assert one["threads"] == max(1, len(os.sched_getaffinity(0)) // world_size)
        variables = one["variables"]
        assert (variables["RANK"], variables["LOCAL_RANK"]) == (str(number), str(number))
        assert (variables["SLURM_PROCID"], variables["KEPT"]) == (None, "yes")
    assert len({one["drawn"] for one in results}) == world_size
    assert len({one["pid"] for one in results}) == world_size


def test_seeds_are_the_launches_and_the_ranks_own():
    first, second, other = (run("works", seed=seed).results for seed in (1, 1, 5))
    assert [one["drawn"] for one in first] == [one["drawn"] for one in second]
    assert not {one["drawn"] for one in first} & {one["drawn"] for one in other}


def test_what_ranks_print_goes_to_the_log_and_harms_nothing(capsys):
    launched = run("prints_garbage")
    assert launched.results == [1.0, 1.0]
    log = capsys.readouterr().err
    assert log.count('{"result": 1}') == 2 and "[rank 0]" in log and "[rank 1]" in log
    assert any("no newline" in line for line in launched.output[0])
    assert max(map(len, launched.output[0])) <= 2**17


def test_launches_beside_each_other_do_not_collide():
    results: dict[int, list[float]] = {}

    def one(number: int) -> None:
        results[number] = [one["sum"] for one in run("works", world_size=number).results]

    threads = [threading.Thread(target=one, args=(number,)) for number in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {2: [1.0] * 2, 3: [3.0] * 3, 4: [6.0] * 4}


@pytest.mark.slow
def test_fresh_interpreters():
    results = run("works", start="spawn").results
    assert [one["sum"] for one in results] == [1.0, 1.0]


@pytest.mark.slow
def test_ranks_below_torchrun(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    results = run("works", launcher=torchrun(2)).results
    assert [(one["place"]["rank"], one["place"]["source"], one["sum"]) for one in results] == [
        (0, "torchrun", 1.0),
        (1, "torchrun", 1.0),
    ]


# --- what fails -------------------------------------------------------------------------------------------------

FAULTS = {
    "raises": (RankError, "rank 1 of 4: ValueError: a bad value", "failed"),
    "says_much": (RankError, "rank 1 of 4: ValueError: x{263}", "failed"),  # cut behind a blank, which goes too
    "killed": (RankError, "rank 1 of 4: died by SIGKILL", "failed"),
    "segfaults": (RankError, "rank 1 of 4: died by SIGSEGV", "failed"),
    "exits": (RankError, "rank 1 of 4: left with exit code 3", "failed"),
    "exits_politely": (RankError, "rank 1 of 4: left with exit code 4", "failed"),
    "out_of_memory": (RankOutOfMemory, r"rank 1 of 4: RuntimeError: .*can't allocate memory.*", "oom"),
    "bare_oom": (RankOutOfMemory, "rank 1 of 4: MemoryError", "oom"),
    "unsupported": (Unsupported, "needs a quantum computer", "unsupported"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_guilty_rank_is_named_with_its_first_line(fault):
    kind, text, status = FAULTS[fault]
    with pytest.raises(kind) as caught:
        run("faulty", {"fault": fault}, world_size=4)
    assert type(caught.value) is kind
    assert re.fullmatch(text, str(caught.value)), str(caught.value)
    answer = failure(caught.value)
    assert answer["status"] == status and answer["reason"].removeprefix("RankError: ") == str(caught.value)
    if fault == "raises":
        assert "in _raise" in answer["error"]["traceback"]
    if fault == "out_of_memory":
        assert answer["error"]["requested_bytes"] == 2**50


def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it():
    with pytest.raises(RankTimeout) as caught:
        run("faulty", {"fault": "hangs"}, world_size=4, timeout_s=3)
    text = r"rank 1 of 4 hangs: no result after 3 s; at rank_programs\.py:\d+ in <lambda>"
    assert re.fullmatch(text, str(caught.value)), str(caught.value)
    assert failure(caught.value)["status"] == "timeout"


def test_a_rank_that_holds_the_interpreter(monkeypatch):
    monkeypatch.setattr(watching, "ANSWER_S", 0.5)
    text = failing(RankTimeout, "faulty", {"fault": "holds_the_interpreter"}, timeout_s=2)
    assert text == "rank 1 of 2 hangs: no result after 2 s; in code that does not let Python answer"


def test_a_rank_that_hangs_under_a_limit_of_the_collectives(impatient):
    text = failing(RankTimeout, "faulty", {"fault": "hangs"}, timeout_s=60, collective_timeout_s=1)
    assert re.match("rank 1 of 2 hangs: rank 0 gave up: RuntimeError: .*Timed out", text), text


def test_a_rank_that_returns_without_the_others():
    text = failing(RankTimeout, "returns_early", timeout_s=2)
    assert text.startswith("rank 0 of 2 waits for rank 1, which returned without them: no result after 2 s"), text


@pytest.mark.parametrize(("what", "text"), [("nan", "ValueError: Out of range"), ("object", "TypeError: Object of")])
def test_a_result_that_is_no_json(what, text):
    assert re.match(rf"rank \d of 2: {text}", failing(RankError, "gives", {"what": what}))


def test_a_program_that_does_not_exist():
    assert re.match(r"rank \d of 2: AttributeError: .*no_such", failing(RankError, "no_such"))


def test_what_a_dead_rank_had_started_ends_with_it(tmp_path):
    pid_file = tmp_path / "pid"
    assert "died by SIGKILL" in failing(RankError, "faulty", {"fault": "lingers", "pid_file": str(pid_file)})
    assert wait_for(lambda: has_ended(int(pid_file.read_text())))


@LINUX
def test_no_rank_outlives_its_launcher(tmp_path):
    """Not even one in which no thread can run that would notice."""
    code = (
        "from perfscribe.distributed.launch import launch\n"
        f"arguments = {{'folder': {str(tmp_path)!r}}}\n"
        "launch('rank_programs:writes_pids_and_hangs', arguments, world_size=2, timeout_s=60)\n"
    )
    script = tmp_path / "launcher.py"
    script.write_text(code)
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], env=environment) as process:
        files = [tmp_path / "0", tmp_path / "1"]
        assert wait_for(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), 60)
        process.kill()
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    own = [pids[0], pids[2]]
    assert wait_for(lambda: all(has_ended(pid) for pid in own))
    for grandchild in (pids[1], pids[3]):  # those may outlive a rank that the kernel killed before it could tell them
        if not has_ended(grandchild):
            os.kill(grandchild, signal.SIGKILL)


PROBE = '''"""Cells of a test: each launches two ranks."""
import os, signal, time

from perfscribe.base.cells import Cell, Measurement


def run(cell):
    from perfscribe.distributed.launch import launch

    program = "perfscribe.experiments.probe.measure:" + cell["what"]
    launched = launch(program, {}, world_size=2, timeout_s=cell["timeout_s"])
    return Measurement(values={"results": launched.results})


def reduce():
    import torch, torch.distributed as dist

    dist.all_reduce(torch.ones(1))


def works(arguments, rank):
    reduce()
    return rank.place.rank


def raises(arguments, rank):
    if rank.place.rank == 1:
        raise ValueError("a bad value")
    reduce()


def hangs(arguments, rank):
    if rank.place.rank == 1:
        time.sleep(123456)
    reduce()
'''
ENDS = {
    "works": ("ok", ""),
    "raises": ("failed", "RankError: rank 1 of 2: ValueError: a bad value"),
    "hangs": ("timeout", r"rank 1 of 2 hangs: no result after 2 s; at measure.py:\d+ in hangs"),
}


def test_what_becomes_of_the_cell(tmp_path):
    """In the worker's own child: statuses, reasons, a cell time-out above the launch's, and no process left."""
    probe = ShardJob(tmp_path / "root", PROBE)
    probe.plan([Cell({"what": what, "timeout_s": 2 if what == "hangs" else 60}) for what in ENDS])
    rows = probe.measure()
    for row, (status, reason) in zip(rows, ENDS.values(), strict=True):
        assert row["status"] == status, row["reason"]
        assert re.fullmatch(reason, row["reason"]), row["reason"]
    assert rows[0]["values"]["results"] == [0, 1]
    probe.plan([Cell({"what": "hangs", "timeout_s": 600})], timeout_s=7, libraries=["torch"])
    assert [(row["status"], row["reason"]) for row in probe.measure()] == [("timeout", "longer than 7 s")]
    here = str(probe.root)
    assert wait_for(lambda: not [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == here])


# --- what cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"world_size": 0}, "world_size 0: expected a whole number from 1"),
        ({"world_size": 2.0}, "world_size 2.0: expected a whole number from 1"),
        ({"world_size": True}, "world_size True: expected a whole number from 1"),
        ({"backend": "mpi"}, "backend 'mpi': expected gloo or nccl"),
        ({"backend": "nccl", "device": "cpu"}, "device 'cpu': nccl expects cuda"),
        ({"device": "tpu"}, "device 'tpu': gloo expects cpu or cuda"),
        ({"transport": "pigeon"}, "transport 'pigeon': expected one of default, nvlink, shm, tcp"),
        ({"transport": "nvlink"}, "transport 'nvlink': gloo has tcp alone"),
        ({"timeout_s": 0}, "timeout_s 0: expected seconds above 0"),
        ({"start": "thread"}, "start 'thread': expected fork or spawn"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, text):
    with pytest.raises(ValueError) as caught:
        run("works", **options)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("gpus", "text"),
    [(0, "4 processes need as many GPUs, 0 are here"), (1, "4 processes need as many GPUs, 1 is here")],
)
def test_more_processes_than_gpus(monkeypatch, gpus, text):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    with pytest.raises(Unsupported) as caught:
        run("works", world_size=4, backend="nccl")
    assert str(caught.value) == text


def test_a_backend_or_a_launcher_that_is_not_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(Unsupported, match=r"^torch is a build without nccl$"):
        run("works", backend="nccl")
    with pytest.raises(Unsupported, match=r"^no mpiexec.test here$"):
        run("works", launcher=["/nowhere/mpiexec.test", "-n", "2"])


def test_a_launcher_that_ends_before_its_ranks_have_begun():
    text = failing(RankError, "works", launcher=["bash", "-c", "echo not enough slots >&2; exit 7"])
    assert text == "bash left with exit code 7: not enough slots"


def test_a_launcher_that_starts_another_number_of_ranks(monkeypatch):
    """As mpiexec of one MPI with the library of another does: each process believes to be alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    text = failing(RankError, "works", launcher=[sys.executable, "-X", "utf8", "-m"])
    assert text == "a rank of 2: ValueError: asked for 2 ranks, but single process started 1"


@pytest.mark.parametrize("program", [lambda arguments, rank: None, type("P", (), {"__module__": "__main__"})])
def test_a_program_that_ranks_cannot_import(program):
    with pytest.raises(ValueError, match="expected a function of the top level of a module"):
        launch(program, {}, world_size=1, timeout_s=5)


def test_a_server_that_gives_no_ranks(monkeypatch):
    import socket

    ours, theirs = socket.socketpair()
    monkeypatch.setattr(starting.SERVER, "agent", lambda: ours)
    assert failing(RankTimeout, "works", timeout_s=0.2) == "the fork server gave no ranks: TimeoutError: timed out"
    ours, gone = socket.socketpair()
    gone.close()
    assert failing(RankError, "works").startswith("the fork server gave no ranks: ")
    theirs.close()


def test_a_server_that_was_killed_is_started_again():
    first = run("works").results
    starting.SERVER._process.kill()
    starting.SERVER._process.wait()
    again = run("works").results
    assert [one["sum"] for one in first] == [one["sum"] for one in again] == [1.0, 1.0]


def test_a_server_may_be_started_early_and_only_once():
    starting.SERVER.start()
    early = starting.SERVER._process
    starting.SERVER.start(("json",))
    assert starting.SERVER._process is early and early.poll() is None
    assert run("works").results[0]["sum"] == 1.0 and starting.SERVER._process is early


def test_a_server_that_imports_less_serves_as_well(monkeypatch):
    server = fork_server.ForkServer()
    server.start(fork_server.BASE)
    monkeypatch.setattr(starting, "SERVER", server)
    assert "torch._dynamo" not in server._process.args and "torch" in server._process.args
    try:
        assert [one["sum"] for one in run("works").results] == [1.0, 1.0]
    finally:
        server._control.close()
        server._process.wait(10)


# --- what the launcher makes of what it hears ---------------------------------------------------------------------


class Heard:
    """A hub that has heard these batches of events, and a job that tells exits."""

    tells_exits, connected = True, False

    def __init__(self, *batches: list[Event]) -> None:
        self.batches, self.sent = list(batches), []

    def poll(self, timeout_s: float) -> list[Event]:
        return self.batches.pop(0) if self.batches else []

    def send(self, rank: int, message: dict) -> None:
        self.sent.append((rank, message["ask"]))

    def ended(self) -> str:
        return ""


GONE = {"text": "ValueError: a", "status": "failed", "details": "", "time_s": 1.0}


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([[Event("exit", 1, 1), Event("closed", 1), Event("message", 1, {"error": GONE})]], "ValueError: a"),
        ([[Event("exit", 1, 1)], [Event("message", 1, {"error": GONE}), Event("closed", 1)]], "ValueError: a"),
        ([[Event("closed", 1), Event("exit", 1, -9)]], "died by SIGKILL"),
        (
            [[Event("closed", 1)], [], [Event("closed", 0), Event("exit", 1, -9)], [Event("exit", 0, -15)]],
            "died by SIGKILL",
        ),
        ([[Event("exit", 1, 3), Event("exit", 0, 4)]], "left with exit code 3"),
    ],
)
def test_ends_are_told_right_in_whatever_order_they_are_heard(batches, text):
    heard = Heard(*batches)
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        watching.Watch(2, 60, heard, heard).results()
    assert (str(caught.value), caught.value.rank) == (f"rank 1 of 2: {text}", 1)
    assert time.monotonic() - began < 5


def test_ranks_may_leave_once_all_results_are_there():
    heard = Heard(
        [Event("message", 1, {"result": "b"}), Event("message", 0, {"hello": {}})],
        [Event("output", 0, "said"), Event("message", 0, {"result": None})],
        [Event("closed", 0), Event("closed", 1)],
    )
    watch = watching.Watch(2, 60, heard, heard)
    assert watch.results() == [None, "b"] and heard.sent == []
    watch.dismiss()
    assert heard.sent == [(0, "leave"), (1, "leave")]


# --- ranks that stay --------------------------------------------------------------------------------------------


def workers(world_size: int = 2, timeout_s: float = 60, **more) -> WorkerGroup:
    return WorkerGroup("rank_programs:stays", world_size=world_size, timeout_s=timeout_s, **more)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_group_runs_its_program_again_in_the_same_processes(start):
    with workers(start=start) as ranks_that_stay:
        first, second = (ranks_that_stay.ask({"n": n}) for n in (1, 2))
        assert [[one[1:] for one in said] for said in (first, second)] == [[[1.0, {"n": 1}]] * 2, [[1.0, {"n": 2}]] * 2]
        assert [one[0] for one in first] == [one[0] for one in second]
        assert all(psutil.pid_exists(one[0]) for one in first)
    assert all(wait_for(lambda pid=one[0]: has_ended(pid)) for one in first)
    ranks_that_stay.close()


def test_a_worker_group_ends_with_the_first_failure():
    for _ in range(2):
        with workers() as ranks_that_stay:
            pids = [one[0] for one in ranks_that_stay.ask({})]
            with pytest.raises(RankError, match=r"^rank 1 of 2: ValueError: a bad value\n"):
                ranks_that_stay.ask({"fault": "raises"})
            assert not ranks_that_stay.is_open and all(wait_for(lambda pid=pid: has_ended(pid)) for pid in pids)


def test_a_rank_that_died_since_its_last_result_is_named():
    with workers() as ranks_that_stay:
        pids = [one[0] for one in ranks_that_stay.ask({"then_die": True})]
        assert wait_for(lambda: has_ended(pids[1]))
        with pytest.raises(RankError, match=r"^rank 1 of 2: left with exit code 7$"):
            ranks_that_stay.ask({})


def test_the_limit_is_for_each_piece_of_work():
    with workers(timeout_s=2) as ranks_that_stay:
        for _ in range(2):
            ranks_that_stay.ask({})
            time.sleep(1.2)
        began = time.monotonic()
        with pytest.raises(RankTimeout, match=r"^rank 1 of 2 hangs: no result after 2 s"):
            ranks_that_stay.ask({"fault": "hangs"})
        assert 2 <= time.monotonic() - began < 6


def test_arguments_that_cannot_be_sent_cost_no_rank():
    with workers() as ranks_that_stay:
        before = ranks_that_stay.ask({})
        with pytest.raises(ValueError, match="not JSON compliant"):
            ranks_that_stay.ask({"n": float("nan")})
        assert [one[0] for one in ranks_that_stay.ask({})] == [one[0] for one in before]


def test_what_a_library_logs_is_there_with_the_result(monkeypatch):
    """C's printf writes in blocks where standard output is no terminal, as NCCL does with its log."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with workers(nccl_log=True, start="spawn") as ranks_that_stay:
        for count in (1, 2, 3):
            ranks_that_stay.ask({"text": f"work {count}"})
            for number, lines in ranks_that_stay.output.items():
                assert lines == [f"work {n} by rank {number}" for n in range(1, count + 1)]


# --- who is to blame --------------------------------------------------------------------------------------------


def raised(number: int, text: str, time_s: float) -> Ending:
    return Ending(number, RAISED, text, time_s)


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"
LATE = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
REMOTE = "DistBackendError: NCCL error: remote process exited or there was a network error, NCCL version 2.28.9"
WATCHDOG = (
    "[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE) ran for 60001"
)


@pytest.mark.parametrize(
    ("endings", "blamed"),
    [
        ([raised(0, "ValueError: a", 2.0), raised(1, "ValueError: b", 1.0)], 1),
        ([raised(0, LOST, 1.0), raised(1, "ValueError: b", 1.1)], 1),
        ([raised(0, LOST, 1.0), raised(1, LOST, 0.9), Ending(2, DIED, "died by SIGKILL", 1.5)], 2),
        ([raised(0, REMOTE, 1.0), raised(3, "OutOfMemoryError: CUDA out of memory. Tried", 2.0)], 3),
        ([raised(0, LOST, 2.0), raised(1, LATE, 1.0)], 1),
        ([raised(0, LOST, 1.0), raised(1, "TimeoutExpired: Command 'nsys' timed out after 5 seconds", 2.0)], 1),
        ([Ending(0, DIED, "died by SIGABRT", 1.0, last_words=(WATCHDOG,)), raised(2, "ValueError: c", 5.0)], 2),
    ],
)
def test_consequences_are_blamed_last(endings, blamed):
    assert failures.guilty(endings).rank == blamed


def test_the_watchdogs_abort_is_a_time_out():
    ending = Ending(0, DIED, "died by SIGABRT", 1.0, last_words=("x", WATCHDOG))
    assert isinstance(failures.error_of(ending, 2), RankTimeout)
    assert not isinstance(failures.error_of(Ending(0, DIED, "died by SIGABRT", 1.0), 2), RankTimeout)


IN_TORCH = Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2, "all_reduce")
STEP = Frame("/a/b.py", 3, "step")
WAITS, WORKS = Stack([IN_TORCH, STEP]), Stack([Frame("/a/work.py", 7, "compute"), STEP])


def test_silence_in_words():
    def text(stacks, silent, **more):
        return str(failures.error_of_silence(stacks, silent, 4, "limit", **more))

    assert text({0: WAITS, 2: WORKS}, [0, 2]) == "rank 2 of 4 hangs: limit; at work.py:7 in compute"
    assert text({0: WORKS, 2: WORKS}, [0, 2]).startswith("rank 0 of 4 hangs (so does rank 2): limit")
    assert text({0: WORKS}, [0, 2]) == "rank 2 of 4 hangs: limit; in code that does not let Python answer"
    everyone = dict.fromkeys(range(4), WAITS)
    assert text(everyone, [0, 1, 2, 3]) == "ranks 0, 1, 2, 3 of 4 wait for each other: limit; rank 0 at b.py:3 in step"
    assert text({}, [0, 1], missing=[1]) == "rank 1 of 4 never started: limit"


def test_who_is_behind_in_collectives_hangs_whatever_the_stacks_say():
    """Waiting for a GPU may look like work, and work like waiting."""
    ahead, behind = Stack([STEP], 7), Stack([IN_TORCH, STEP], 6)
    error = failures.error_of_silence({0: ahead, 1: ahead, 2: behind}, [0, 1, 2], 3, "limit")
    assert (str(error), error.rank) == ("rank 2 of 3 hangs: limit; at b.py:3 in step", 2)
    even = {rank: Stack(stack.frames, 7) for rank, stack in enumerate((WAITS, WORKS, WAITS))}
    assert failures.error_of_silence(even, [0, 1, 2], 3, "limit").rank == 1
    assert "rank 1: 7 collectives begun; work.py:7 in compute < b.py:3 in step" in error_notes(even)


def error_notes(stacks: dict[int, Stack]) -> list[str]:
    return failures.error_of_silence(stacks, sorted(stacks), len(stacks), "limit").__notes__


def test_ranks_divide_the_memory_that_a_process_was_given(monkeypatch):
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 5000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    rank._share_memory_limit(ranks.Place(0, 4, 0, 4, 0, "", ""))
    assert given == [(250, 5000)]


def test_exit_codes_in_words():
    words = [starting.exit_text(code) for code in (3, -9, -40, None)]
    assert words == [
        "left with exit code 3",
        "died by SIGKILL",
        "died by signal 40",
        "closed its connection",
    ]


def test_strangers_are_sent_away():
    import socket

    with Hub() as hub:
        host, port = hub.address.split(":")
        for sent in (b'{"token": "guess", "rank": 0, "stream": "messages"}\n', b"GET / HTTP/1.1\r\n\r\n", b"x" * 9000):
            with socket.create_connection((host, int(port)), timeout=5) as stranger:
                stranger.sendall(sent)
                assert [event for _ in range(3) for event in hub.poll(0.2)] == []
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
