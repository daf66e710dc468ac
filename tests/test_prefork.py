"""Jobs forked by a run's servers are what they would be as themselves: arguments, environment, signals, ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from sessions import wait_for
from workspace import ROOT, Workspace

from perfscribe import session
from perfscribe.prefork import client, forked, start

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has them")
CLIENT = ROOT / "perfscribe" / "prefork" / "client.py"
TELL = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from perfscribe.prefork import forked
print(forked.is_here(), *sys.argv[1:], os.environ.get("WORD"), os.getcwd(), flush=True)
print({client.VARIABLE!r} in os.environ, file=sys.stderr)
sys.exit(3)
"""
WAIT = """
import os, signal, sys, time
def leave(number, _):
    print("asked by", number, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print(os.getpid(), flush=True)
time.sleep(60)
"""
STARTS = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from perfscribe.prefork import client, start
servers = start.start(Path({str(ROOT)!r}), {{}}, [client.DRAWING, client.MEASURING], 1)
print(servers.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The environment that jobs of a run with servers have."""
    environment = {name: text for name, text in os.environ.items() if name != client.VARIABLE}
    process = start.start(ROOT, environment, [client.DRAWING, client.MEASURING_WITH_TORCH], cores=2)
    assert process is not None
    assert client.VARIABLE in environment
    yield environment
    os.close(start._PIPES.pop())
    assert process.wait(10) == 0


def begin(environment: dict[str, str], script: Path, text: str, *words: str, **how: Any) -> subprocess.Popen[str]:
    script.write_text(text, encoding="utf-8")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, CLIENT, script, *words], env=environment, **pipes, **how)


def told(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Exit status, and what was printed first."""
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.split()


def test_a_script_runs_as_it_would_by_itself(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers | {"WORD": "word"}, tmp_path / "present.py", TELL, "one", "two words", cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, f"True one two words word {tmp_path}\n")
    assert error == "False\n"  # what it starts itself asks no server


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("other.py", {}, id="a script of no kind"),
        pytest.param("present.py", {client.VARIABLE: "perfscribe-none"}, id="no server of this name"),
        pytest.param("present.py", {client.VARIABLE: client.OFF}, id="off"),
        pytest.param("present.py", {"OMP_PROC_BIND": "true"}, id="libraries have read another environment"),
        pytest.param("present.py", {"SLURM_JOB_ID": "1"}, id="in another job"),
    ],
)
def test_without_a_server_it_is_itself(
    servers: dict[str, str], tmp_path: Path, name: str, more: dict[str, str]
) -> None:
    assert told(begin(servers | more, tmp_path / name, TELL, "one"))[1][:2] == ["False", "one"]


def test_what_is_timed_has_the_threads_of_its_job(servers: dict[str, str], tmp_path: Path) -> None:
    text = TELL.replace("sys.exit(3)", "import torch; print(torch.get_num_threads(), 'torch._dynamo' in sys.modules)")
    job = servers | {f"{name}_NUM_THREADS": "2" for name in start.THREADS}
    for job_number in range(2):  # the second finds torch's compiler, as many will
        code, words = told(begin(job, tmp_path / "measure.py", text))
        assert (code, words[0], words[-2:]) == (0, "True", ["2", str(job_number == 1)])
    fewer = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code, words = told(begin(job | fewer, tmp_path / "measure.py", text))
    assert (code, words[0], words[-2]) == (0, "False", "1")


def test_what_measures_the_start_of_a_process_starts_itself(servers: dict[str, str], tmp_path: Path) -> None:
    job = servers | {f"{name}_NUM_THREADS": "2" for name in start.THREADS}
    code, words = told(begin(job, tmp_path / "measure.py", TELL, "--plan", "plan/measure-torch_compile-0.json"))
    assert (code, words[0]) == (3, "False")


def test_a_request_to_stop_reaches_it(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers, tmp_path / "present.py", WAIT)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert told(process) == (7, ["asked", "by", str(int(signal.SIGTERM))])


def test_a_request_that_comes_before_the_job_reaches_it(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers | {f"LONG{n}": "x" * 60_000 for n in range(4)}, tmp_path / "present.py", WAIT)
    time.sleep(0.03)  # it has begun to send its order, or is about to
    process.send_signal(signal.SIGTERM)
    assert told(process)[0] in (7, -signal.SIGTERM)


def test_what_the_run_ignores_its_jobs_ignore(tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        environment = dict(os.environ)
        run = start.start(ROOT, environment, [client.DRAWING], 1)
        assert run is not None
        job = begin(environment, tmp_path / "present.py", "import signal; print(signal.getsignal(signal.SIGHUP).name)")
        assert told(job) == (0, ["SIG_IGN"])
    finally:
        signal.signal(signal.SIGHUP, handler)
        os.close(start._PIPES.pop())
    assert run.wait(10) == 0


def test_it_ends_with_its_client(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers, tmp_path / "present.py", WAIT)
    assert process.stdout is not None
    job = int(process.stdout.readline())
    assert psutil.pid_exists(job)
    process.kill()
    wait_for(lambda: not psutil.pid_exists(job), 10)


def test_its_client_dies_by_the_signal_that_killed_it(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers, tmp_path / "present.py", WAIT)
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert told(process)[0] == -signal.SIGKILL


def test_servers_end_with_the_run_that_is_killed() -> None:
    run = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    parent = psutil.Process(int(run.stdout.readline()))
    below = [parent, *parent.children(recursive=True)]
    assert len(below) == 3
    run.kill()
    run.wait()
    for process in below:
        process.wait(10)


@pytest.mark.parametrize(
    ("missing", "libraries", "read_only", "kinds"),
    [
        pytest.param("no CUDA device", ["torch"], False, [client.DRAWING, client.MEASURING_WITH_TORCH], id="no GPU"),
        pytest.param("no CUDA device", ["numpy"], False, [client.DRAWING, client.MEASURING], id="nothing of torch"),
        pytest.param("", ["torch"], False, [client.DRAWING], id="a GPU, whose driver does not survive a fork"),
        pytest.param("no CUDA device", ["torch"], True, [client.DRAWING], id="a published site"),
    ],
)
def test_which_jobs_of_a_run_are_forked(
    monkeypatch: pytest.MonkeyPatch, missing: str, libraries: list[str], read_only: bool, kinds: list[str]
) -> None:
    monkeypatch.setattr("perfscribe.environment.missing", lambda requires: missing)
    plan = SimpleNamespace(units={"measure-a-0": {"libraries": libraries}, "present-a": {}})
    run = session.Session(ROOT, cast(Any, plan), session.RunLock(ROOT / "lock"), True, read_only)
    assert run._forked_jobs() == kinds


# --- forked processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code"),
    [
        pytest.param(lambda: None, 0, id="returns"),
        pytest.param(lambda: sys.exit(5), 5, id="exits"),
        pytest.param(lambda: sys.exit("a line"), 1, id="exits with a line"),
        pytest.param(lambda: 1 / 0, 1, id="raises"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL, id="dies"),
        pytest.param(lambda: signal.raise_signal(signal.SIGINT), -signal.SIGINT, id="is interrupted"),
    ],
)
def test_how_a_forked_process_ends(target: Any, code: int) -> None:
    assert forked.Forked(target).wait(10) == code


def test_waiting_for_a_forked_process_has_an_end() -> None:
    process = forked.Forked(time.sleep, [60])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # it is gone, and no other process is meant


def test_a_signal_right_after_the_fork_is_not_lost() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a server
    try:
        for _ in range(20):
            process = forked.Forked(time.sleep, [20])
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_process_holds_what_it_is_given_alone() -> None:
    given, kept = os.pipe()
    open_, other = os.pipe()

    def tell() -> None:
        with contextlib.suppress(OSError):
            os.write(kept, b"1" if os.fstat(kept) else b"")
            os.write(kept, b"2" if os.fstat(other) else b"")

    assert forked.Forked(tell, keep=[kept]).wait(10) == 0
    assert os.read(given, 10) == b"1"
    for descriptor in (given, kept, open_, other):
        os.close(descriptor)


CELLS = '''"""How a cell's process came to be."""
import sys
from perfscribe.cells import Cell, Measurement
from perfscribe.prefork import forked


def start_early():
    from perfscribe.parallel.fork_server import BASE, SERVER

    SERVER.start(BASE)


def cells(config):
    return [Cell({"n": n}) for n in range(2)]


def run(cell):
    from perfscribe.parallel.fork_server import SERVER

    values = {"forked": int(forked.is_here()), "ranks_forked": int(isinstance(SERVER._process, forked.Forked))}
    return Measurement(samples={"time_ms": [1.0]}, values=values)
'''


def test_cells_of_a_run_are_forked_and_off_means_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Workspace(tmp_path)
    project.only()
    project.add_experiment("told", CELLS)
    assert project.run("report").returncode == 0
    assert [row["values"] for row in project.rows("told")] == [{"forked": 1, "ranks_forked": 1}] * 2
    project.run("remeasure", "told")
    monkeypatch.setenv(client.VARIABLE, client.OFF)  # as where there is a GPU
    assert project.run("report").returncode == 0
    assert [row["values"] for row in project.rows("told")] == [{"forked": 0, "ranks_forked": 0}] * 2
