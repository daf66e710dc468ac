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
servers = start.start(Path({str(ROOT)!r}), {{}}, [client.DRAWING, client.MEASURING])
print(servers.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The environment that jobs of a run with servers have."""
    environment = {name: text for name, text in os.environ.items() if name != client.VARIABLE}
    process = start.start(ROOT, environment, [client.DRAWING, client.MEASURING_WITH_TORCH])
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


def test_its_threads_are_those_that_the_job_is_given(servers: dict[str, str], tmp_path: Path) -> None:
    text = TELL.replace("sys.exit(3)", "import torch; print(torch.get_num_threads(), 'torch._dynamo' in sys.modules)")
    for threads, job in (("1", "first"), ("2", "second")):  # which finds torch's compiler, as many will
        code, words = told(begin(servers | {"OMP_NUM_THREADS": threads}, tmp_path / "measure.py", text))
        assert (code, words[0], words[-2:]) == (0, "True", [threads, str(job == "second")])


def test_a_request_to_stop_reaches_it(servers: dict[str, str], tmp_path: Path) -> None:
    process = begin(servers, tmp_path / "present.py", WAIT)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert told(process) == (7, ["asked", "by", str(int(signal.SIGTERM))])


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
