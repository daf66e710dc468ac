"""Job scripts: what they say, checked by shellcheck, with schedulers' commands replaced, and really run."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscribe import cli
from perfscribe.verbs import launch

ROOT = Path(__file__).resolve().parents[2]
SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))
JOB = [sys.executable, "-m", launch.JOB, "--preset", "tiny"]


def script(scheduler: str, *arguments: str, nodes: int = 2, ranks: int = 2, command: list[str] | None = None) -> str:
    asked = ["--scheduler", scheduler, "--nodes", str(nodes), "--ranks-per-node", str(ranks), *arguments]
    return launch.script(launch.read([*asked, *(["--", *command] if command else [])]), ROOT)


KINDS = [(scheduler, name) for scheduler, names in launch.LAUNCHERS.items() for name in names]


@pytest.mark.parametrize(("scheduler", "launcher"), KINDS)
def test_every_script_is_sound_shell(scheduler, launcher, tmp_path):
    """By shellcheck, every remark counts; by bash alone where that is missing."""
    checker = [SHELLCHECK] if SHELLCHECK else ["bash", "-n"]
    binding = ["--cpu-bind", "list:0,1:8,9"] if launcher != "torchrun" else []
    head = ["--account", "a", "--queue", "q", "--filesystems", "home:eagle", "--gpus-per-node", "0"]
    path = tmp_path / "job.sh"
    for more in ([], ["--profile", "torch", *binding], ["--profile", "nsys", "--preflight", *head]):
        path.write_text(script(scheduler, "--launcher", launcher, *more))
        done = subprocess.run([*checker, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    odd = ["my program", "it's", "$HOME", "a\nb", "`x`", ";"]
    path.write_text(script(scheduler, "--launcher", launcher, nodes=1, command=odd))
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0


def run_replaced(text: str, tmp_path: Path, **variables: str) -> list[str]:
    """The words that the launcher is given where commands of the scheduler only tell theirs."""
    tells = 'printf "%s\\n" "$MASTER_ADDR:$MASTER_PORT" "$@"'
    for name, line in {"srun": tells, "mpiexec": tells, "scontrol": "printf 'node7\\nnode8\\n'"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "nodes").write_text("x3001\nx3002\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PBS_NODEFILE": str(tmp_path / "nodes"), **variables}
    environment.pop("OMP_NUM_THREADS", None)
    here = text.replace(f"cd {ROOT}\n", f"cd {tmp_path}\n")
    done = subprocess.run(["bash"], input=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_two_nodes_of_one_rank_profiled_under_pbs(tmp_path):
    """The homework's profile of communication between nodes."""
    asked = ["--profile", "torch", "--queue", "debug", "--filesystems", "home:eagle", "--cpu-bind", "list:24"]
    text = script("pbs", *asked, ranks=1)
    head = " ".join(line.removeprefix("#PBS ") for line in text.splitlines() if line.startswith("#PBS"))
    limits = "-l walltime=00:30:00 -l filesystems=home:eagle"
    assert head == f"-N perfscribe-2x1 -l select=2 -l place=scatter {limits} -q debug"
    said = run_replaced(text, tmp_path, PBS_JOBID="12345[].polaris-pbs-01")
    assert said[:6] == ["x3001:22345", "-n", "2", "--ppn", "1", "--line-buffer"]
    assert said[said.index("--cpu-bind") + 1] == "list:24"
    assert said[-5:] == [sys.executable, "-m", launch.JOB, "--profile", "profiles/12345"]


def test_srun_and_its_head(tmp_path):
    text = script("slurm", "--cpu-bind", "list:0,1:8,9", "--profile", "nsys", "--account", "me", ranks=2)
    head = " ".join(line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH"))
    asked = "--nodes=2 --ntasks-per-node=2 --gpus-per-node=2 --exclusive --time=00:30:00 --account=me"
    assert head == f"--job-name=perfscribe-2x2 {asked}"
    said = run_replaced(text, tmp_path, SLURM_JOB_ID="123456", SLURM_JOB_NODELIST="node[7-8]")
    assert said[:4] == ["node7:23456", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    assert said[4:7] == ["--cpu-bind=mask_cpu:0x3,0x300", "nsys", "profile"]
    assert "--output=profiles/123456/rank-%q{SLURM_PROCID}" in said
    assert "--gpus-per-node" not in script("slurm", "--gpus-per-node", "0")
    assert "--cpu-bind=cores" in script("slurm")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "two"], "argument --nodes: got 'two', expected a whole number from 1 to 100000"),
        (["--launcher", "mpiexec"], "--launcher: got 'mpiexec', expected srun or torchrun for --scheduler slurm"),
        (["--cpu-bind", "0,1"], "cpu-bind '0,1': expected list:…, map_cpu:… or mask_cpu:…"),
        (["--cpu-bind", "list:0:1"], "--cpu-bind: 2 bindings for 4 ranks of a node"),
        (["--account", "a\nrm -rf x"], "expected a name"),
    ],
)
def test_bad_arguments_give_one_line(words, why):
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", "--scheduler", "slurm", "--nodes", "2", "--ranks-per-node", "4", *words])
    text = str(ended.value.code)
    assert text.startswith("run: launch: ") and text.endswith(" (./run launch --help)")
    assert why in text and "\n" not in text


def ranks_of(text: str) -> list[tuple[int, int, int]]:
    return sorted(
        (int(rank), int(size), int(local))
        for rank, size, local in re.findall(r"rank (\d+) of (\d+), local rank (\d+), host", text)
    )


@pytest.mark.slow
def test_torchrun_on_this_machine_profiled(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *JOB[1:], "--profile", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert ranks_of(said) == [(0, 2, 0), (1, 2, 1)]
    assert re.search(r"^trained 2 epochs in [\d.]+ s, .* samples/s, final loss [\d.]+$", said, re.MULTILINE)
    for rank in (0, 1):
        trace = json.loads(gzip.decompress((tmp_path / f"rank-{rank}.json.gz").read_bytes()))
        steps = [event for event in trace["traceEvents"] if event["name"].startswith("ProfilerStep#")]
        assert len({event["name"] for event in steps}) == 2
        lines = (tmp_path / f"rank-{rank}.csv").read_text().splitlines()
        assert lines[0].startswith("name,calls,host_us") and any("layer_norm" in line for line in lines)
