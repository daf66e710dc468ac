"""A subject's checkout, right or changed, and its cells as a job's child runs them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from measured_cells import with_tokens

from perfscribe.plan import plan, subjects
from perfscribe.plan.fingerprint import Sources
from perfscribe.plan.plan_cells import cell_to_json
from perfscribe.subjects import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
NAIVE = Path(__file__).parent / "naive"


@pytest.fixture
def subject(tmp_path: Path) -> Callable[..., Path]:
    """The adapter file of the naive checkout, these places changed and these files written over it.

    A place: module, text that stands in it once, text to put there.
    """

    def make(*places: tuple[str, str, str], **files: str) -> Path:
        folder = tmp_path / "assignment2-systems"
        shutil.copytree(NAIVE, folder, dirs_exist_ok=True)
        for module, old, new in places:
            path = folder / "cs336_systems" / f"{module}.py"
            text = path.read_text()
            assert text.count(old) == 1
            path.write_text(text.replace(old, new))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder / "tests" / "adapters.py"

    return make


# Runs cells in processes forked from one that has imported torch, which is most of a cell's time. So has the server of
# all their ranks, for which a process that did not start it may not wait.
SERVER = """
import json, os, sys
from multiprocessing import forkserver
import torch
from perfscribe.base import registry
from perfscribe.distributed.starting import start_server
from perfscribe.run import child
modules = {name: registry.module(name, "measure") for name in sys.argv[1:]}
start_server()
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    os.waitpid(pid, 0)
    print(flush=True)
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
os.environ.update(order["variables"])
answer = child.run_cell(modules[order["experiment"]], order["request"])
with open(order["file"], "w") as stream:
    json.dump(answer, stream)
os._exit(0)
"""
EXPERIMENTS = ("flash_benchmarking", "ddp", "optimizer_state_sharding", "fsdp_accounting")


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER, *EXPERIMENTS]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdin=PIPE, stdout=PIPE, text=True) as process:
        yield process


@pytest.fixture
def measured(server: subprocess.Popen[str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The child's answer to the first of a subject's cells with these levels, some of them then replaced."""

    def run(experiment: str, adapters: Path, replaced: Any = (), **levels: Any) -> dict[str, Any]:
        ours, yours = plan.planned_cells({}, experiment, "tiny"), [subjects.read("yours", adapters)]
        written = [cell for cell in subjects.cells(experiment, ours, yours, Sources(ROOT)) if not cell.skip]
        cell = next(cell for cell in written if all(cell[name] == level for name, level in levels.items()))
        cell = replace(cell, factors=cell.factors | dict(replaced))
        if cell.data:
            with_tokens(tmp_path / "data", cell["batch"], cell["seq_len"])
        request = {"cell": cell_to_json(cell), "seed": 0, "data_folder": str(tmp_path / "data"), "round": 1}
        variables = {VARIABLE: json.dumps({"yours": str(adapters)})}
        order = {"experiment": experiment, "request": request, "variables": variables, "file": str(tmp_path / "answer")}
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        server.stdout.readline()
        answer: dict[str, Any] = json.loads((tmp_path / "answer").read_text())
        return answer

    return run
