"""Leases of GPUs: who holds which, between real processes, with NVML's stand-in; and which jobs run at a time."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from sessions import wait_for
from shards import ShardJob
from workspace import ROOT, Workspace

from perfscribe.base.cells import Cell
from perfscribe.base.one_line import in_one_line
from perfscribe.instruments import nvml
from perfscribe.plan import capabilities
from perfscribe.run import leases

# Takes GPUs again and again; a file that is made anew for each and removed afterwards shows that nobody else has one.
TAKER = """
import os, random, sys, time
from perfscribe.run import leases

random.seed(sys.argv[1])
for _ in range(16):
    lease = leases.Lease(random.choice([1, 1, 2, 3, 4]))
    assert lease.take(time.time() + 60), "waited for a minute"
    marks = [os.path.join(sys.argv[2], gpu.uuid) for gpu in lease.gpus]
    for mark in marks:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    time.sleep(random.uniform(0, 0.02))
    for mark in marks:
        os.unlink(mark)
    lease.release()
"""

# Cells that tell when they ran, where, and on which GPU.
TELLS = '''"""Cells of a test."""
import json
import os
import subprocess
import time

from perfscribe.base.cells import Cell, Measurement


def cells(config):
    return [Cell({{"n": n}}, requires=("cuda",), cost=n) for n in config["n"]]


def run(cell):
    began = time.time()
    time.sleep({seconds})
    # What a cell starts inherits whatever may be inherited.
    below = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout
    told = {{
        "began": began,
        "ended": time.time(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "locks": below.count(".lock"),
    }}
    return Measurement(samples={{"time_ms": [1.0]}}, values={{"told": json.dumps(told)}})
'''


DATA = """

def datasets(config):
    from perfscribe.data import tokens

    return tokens.datasets([1], [8], 0)
"""


PYNVML = '''"""Answers as NVML of {count} GPUs does."""
from fake_nvml import FakeNvml, NVMLError

_NVML = FakeNvml({count})


def nvmlInit():
    pass


def __getattr__(name):
    return getattr(_NVML, name)
'''


def pretend_gpus(folder: Path, count: int) -> None:
    """Put a pynvml and a torch of CUDA 13 into a folder in which processes look for modules first."""
    shutil.copy(ROOT / "tests" / "fake_nvml.py", folder)
    (folder / "pynvml.py").write_text(PYNVML.format(count=count))
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a stand-in: there is nothing to compute with')\n")
    (folder / "torch" / "version.py").write_text('__version__ = "2.11.0+cu130"\ncuda = "13.0"\n')


@pytest.fixture(autouse=True)
def lease_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test's own, and all GPUs visible."""
    monkeypatch.setenv(leases.FOLDER_VARIABLE, str(tmp_path_factory.mktemp("leases")))
    monkeypatch.delenv(leases.VISIBLE, raising=False)


@contextmanager
def holding(gpus: int) -> Iterator[None]:
    """So many of four GPUs are another's, the first ones."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nvml, "load", lambda: FakeNvml(4))
        lease = leases.Lease(gpus)
        assert lease.take()
    yield
    lease.release()


@pytest.mark.parametrize("visible", ["GPU-3aaa-bbb,GPU-1aaa-bbb", "3,1"])
def test_visible_devices_are_respected(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    library = FakeNvml(4)
    monkeypatch.setattr(nvml, "load", lambda: library)
    monkeypatch.setenv(leases.VISIBLE, visible)
    lease = leases.Lease(4)  # the cells say that others are missing
    assert lease.take()
    named = lease.variables()[leases.VISIBLE]
    lease.release()
    assert named == "GPU-3aaa-bbb,GPU-1aaa-bbb"


def test_no_two_hold_one_and_none_waits_for_ever(tmp_path: Path) -> None:
    pretend_gpus(tmp_path, 4)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKER, str(seed), str(tmp_path)], env=env, cwd=tmp_path)
        for seed in range(6)
    ]
    assert [taker.wait(120) for taker in takers] == [0] * 6


def test_a_job_for_several_holds_none_after_the_one_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    with holding(1):
        monkeypatch.setattr(nvml, "load", lambda: FakeNvml(4))
        lease = leases.Lease(4, say=lambda _: held.append(len(lease.descriptors)))
        assert not lease.take(deadline=0.0)
    assert held == [0]


def test_a_file_system_without_locks_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(leases.fcntl, "flock", refuse)
    told = f"x: {tmp_path / 'a.lock'}: cannot be locked (No locks available); name a folder on a local disk in "
    with pytest.raises(SystemExit, match=re.escape(told + leases.FOLDER_VARIABLE)), in_one_line("x"):
        leases.try_lock(tmp_path / "a.lock")


@pytest.mark.parametrize(
    ("near", "granted", "expected"),
    [
        ([{0, 1, 2, 3}] * 2 + [{4, 5, 6, 7}] * 2, range(8), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ([{64, 65}, {0, 1}], [0, 1, 64, 65], [(64, 65), (0, 1)]),
        ([{0, 1}, {1, 2}], range(4), [(0, 1), (2, 3)]),  # not to be told apart
        ([{0}, {0}], range(1), []),
    ],
)
def test_cores_are_disjoint_and_near(
    monkeypatch: pytest.MonkeyPatch, near: list[set[int]], granted: Any, expected: Any
) -> None:
    def affinity(gpu: Any, words: int) -> list[int]:
        """As NVML tells it: a mask in words of 64 cores."""
        mask = sum(1 << core for core in near[library.gpus.index(gpu)])
        return [mask >> 64 * place & (2**64 - 1) for place in range(words)]

    library = FakeNvml(len(near))
    library.functions["nvmlDeviceGetCpuAffinity"] = affinity
    monkeypatch.setattr(nvml, "load", lambda: library)
    monkeypatch.setattr(leases, "_whole_cores", lambda threads: [(thread,) for thread in sorted(threads)])
    assert leases.cores_by_gpu(leases.visible(), list(granted)) == expected


def job(root: Path, gpus: int = 4, seconds: float = 0.0) -> ShardJob:
    made = ShardJob(root, TELLS.format(seconds=seconds))
    made.plan([Cell({"n": n}, requires=("cuda",)) for n in range(2)])
    pretend_gpus(root, gpus)
    return made


def told(row: dict[str, Any]) -> dict[str, Any]:
    assert row["status"] == "ok", row["reason"]
    found: dict[str, Any] = json.loads(row["values"]["told"])
    return found


def test_cells_see_the_gpu_leased_and_records_the_whole_machine(tmp_path: Path) -> None:
    made = job(tmp_path / "root")
    with holding(1), made.running() as process:
        assert process.wait() == 0, process.log()
    for row in made.rows():
        assert told(row)["gpus"] == "GPU-1aaa-bbb" and told(row)["locks"] == 0
        assert row["provenance"]["gpus"] == [1]
        identity = json.loads((made.site / "environments" / f"{row['environment']}.json").read_text())
        assert identity["gpu_count"] == 4 and identity["cpu_cores"] == len(os.sched_getaffinity(0))
    assert "GPU-" not in made.records_file.read_text().replace('\\"gpus\\": \\"GPU-1aaa-bbb\\"', "")


def test_jobs_of_two_checkouts_exclude_each_other_and_waiting_is_not_timed(tmp_path: Path) -> None:
    one, other = job(tmp_path / "one", gpus=1, seconds=0.6), job(tmp_path / "other", gpus=1, seconds=0.6)
    with one.running() as first:
        wait_for(lambda: one.journal_file.exists() and any(e["event"] == "started" for e in one.events()))
        with other.running() as second:
            assert first.wait() == second.wait() == 0, second.log()
    assert max(told(row)["ended"] for row in one.rows()) < min(told(row)["began"] for row in other.rows())
    waiting = [event for event in other.events() if event["event"] == "waiting"]
    assert [event["what"] for event in waiting] == ["waits for GPU 0, leased by other jobs on this machine"]
    assert second.log().count("waits for GPU 0") == 1
    assert all(row["spent"]["wall_s"] < 1.2 for row in other.rows())


def test_a_job_that_waits_can_be_stopped_and_ends_with_the_time_budget(tmp_path: Path) -> None:
    made = job(tmp_path / "root")
    with holding(4):
        with made.running() as process:
            wait_for(lambda: "waits for GPU" in process.log())
            process.signal_group(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
        assert not [event for event in made.events() if event["event"] in ("started", "record")]
        made.plan([Cell({"n": 0}, requires=("cuda",))], budget_minutes=0.02)
        with made.running() as process:
            assert process.wait() == 0, process.log()
    assert [row["status"] for row in made.rows()] == ["not_run"]


def test_a_job_leases_for_the_cell_that_uses_most_of_those_that_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "load", lambda: FakeNvml(4))
    monkeypatch.setattr(capabilities, "unmet", lambda requires: ["lacking"] if "cuda:8" in requires else [])
    needs = ([], ["cuda"], ["cuda", "cuda:2"], ["cuda:8"])
    cells = [{"requires": need, "skip": ""} for need in needs] + [{"requires": ["cuda:4"], "skip": "preset"}]
    assert leases.for_shard({"cells": cells}, tmp_path, beside_others=True) == leases.Lease(2)
    assert leases.for_shard({"cells": cells[:1]}, tmp_path, beside_others=True) == leases.Lease(0)
    assert leases.for_shard({"cells": cells[1:2]}, tmp_path, beside_others=True) == leases.Lease(1, True)


def test_as_many_jobs_at_a_time_as_gpus_and_one_that_is_alone(tmp_path: Path) -> None:
    """Six shards of one GPU each, one that reads data, and an experiment that needs the machine; four GPUs."""
    project = Workspace(tmp_path)
    project.only()
    project.add_experiment("single", TELLS.format(seconds=3.0), n=[0, 1, 2, 3, 4, 5])
    reading = TELLS.format(seconds=0.5).replace("cost=n)", "cost=n, data=(*datasets(config),))")
    project.add_experiment("reading", reading + DATA, n=[0])
    project.add_experiment("wide", TELLS.format(seconds=0.5), alone=True, n=[0])
    pretend_gpus(project.root, 4)
    project.set_config("preset: gpu\nexperiments: {single: {shards: 6}}\n")
    project.succeed("report", "--cores", "4")
    single, wide = ([told(row) for row in project.rows(name)] for name in ("single", "wide"))
    assert max(sum(one["began"] <= other["began"] < one["ended"] for one in single) for other in single) == 4
    assert {one["gpus"] for one in single} == {f"GPU-{number}aaa-bbb" for number in range(4)}
    for one in single:
        meanwhile = [other for other in single if one["began"] < other["ended"] and other["began"] < one["ended"]]
        assert all(other["gpus"] != one["gpus"] for other in meanwhile if other is not one)
        assert all(one["ended"] < alone["began"] or alone["ended"] < one["began"] for alone in wide)
    # Its data set needs all cores, so it would wait for the end of all others if it were not made first.
    assert told(project.rows("reading")[0])["began"] < max(one["ended"] for one in single)
