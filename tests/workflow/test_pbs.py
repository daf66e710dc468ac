"""The profile for PBS: what qsub is asked, what qstat's answers mean, and a whole run beside commands that stand in."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import faulty
import pytest
from workspace import ROOT, Workspace


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"pbs_{name}", ROOT / "pbs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


submit, status = load("submit"), load("status")


CLUSTER = {"slurm_account": "mine", "slurm_partition": "debug", "constraint": "filesystems=home:eagle"}
NODES = {"nodes": 2, "cpus_per_task": -1, "slurm_extra": "--exclusive"}


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({}, "-l select=1:ncpus=1 -l place=scatter -l walltime=01:00:00"),
        ({"nodes": 1, "gpu": 1, "cpus_per_task": 8, "mem_mb": 2000}, "-l select=1:mem=2000mb:ncpus=8:ngpus=1"),
        ({**NODES, "gres": "gpu:4"}, "-l select=2:ngpus=4 -l place=scatter:excl"),
        ({**NODES, "slurm_extra": "--exclusive --nodelist=x1,x2"}, "-l select=1:host=x1+1:host=x2"),
        ({"runtime": 75, **CLUSTER}, "-l walltime=01:15:00 -l filesystems=home:eagle -A mine -q debug job.sh"),
    ],
)
def test_a_job_asks_for_what_it_needs(resources: dict[str, Any], words: str) -> None:
    job = {"rule": "measure", "wildcards": {"experiment": "all_reduce", "shard": "0"}, "resources": resources}
    asked = " ".join(submit.command(job, "job.sh"))
    assert asked.startswith("qsub -N measure-all_red ") and words in asked


# In the form of PBS Professional's `qstat -x -f`: attributes one a line, long ones broken and indented by a tab.
ANSWER = """Job Id: 2012345.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov
    Job_Name = measure-ddp-0
    job_state = {state}
    Variable_List = PBS_O_HOME=/home/someone,PBS_O_LANG=en_US.UTF-8,
\tNOTE=job_state = F,PBS_O_WORKDIR=/lus/eagle/somewhere{more}

"""


@pytest.mark.parametrize(
    ("state", "more", "said"),
    [
        ("R", "", "running"),
        ("E", "\n    Exit_status = 0", "running"),
        ("F", "\n    Exit_status = 0", "success"),
        ("F", "\n    Exit_status = -29", "failed"),  # PBS killed it: its wall time was over
        ("F", "\n    Exit_status = 265", "failed"),  # a signal, as qdel sends
        ("F", "", "failed"),  # deleted before it ran
    ],
)
def test_states(state: str, more: str, said: str) -> None:
    assert status.verdict(0, ANSWER.format(state=state, more=more)) == said
    assert status.verdict(153, "qstat: Unknown Job Id 77.polaris-pbs-01\n") == "failed"
    assert status.verdict(255, "qstat: cannot connect to server polaris-pbs-01 (errno=111)\n") == "running"


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_the_scripts_as_programs(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(script: str, argument: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "pbs" / script), argument]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)

    properties = json.dumps({"rule": "measure", "wildcards": {}, "resources": {}})
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n# properties = {properties}\ntrue\n")
    stand_in(tmp_path, "qsub", "#!/bin/sh\necho 'qsub: Unknown queue' >&2\nexit 170\n")
    done = run("submit.py", str(tmp_path / "job.sh"))
    assert (done.returncode, done.stdout) == (170, "") and "qsub: Unknown queue" in done.stderr
    environment["PATH"] = str(tmp_path)
    assert run("status.py", "7").stdout == "running\n"
    (tmp_path / "qsub").unlink()
    done = run("submit.py", str(tmp_path / "job.sh"))
    assert (done.returncode, done.stderr) == (1, "submit: there is no qsub on PATH\n")


QSUB = """#!/bin/sh
number=$(($(ls jobs | wc -l) + 1))
mkdir jobs/$number
echo "$@" >jobs/$number/words
for script; do :; done
(PBS_JOBID=$number.here sh "$script" >jobs/$number/log 2>&1; echo $? >jobs/$number/code) &
echo $number.here
"""
QSTAT = """#!/bin/sh
for number; do :; done
folder=jobs/${number%.here}
if [ -f $folder/code ]; then echo "    job_state = F"; echo "    Exit_status = $(cat $folder/code)"
else echo "    job_state = R"; fi
"""


def test_the_profile_with_commands_that_stand_in_for_a_server(tmp_path: Path) -> None:
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    (tmp_path / "a").mkdir()
    space = Workspace(tmp_path / "a")
    side_file = tmp_path / "executions"
    space.only()
    space.add_experiment("slow", faulty.sleeping("slow", side_file, (0.1,)), n=[0, 1, 2, 3])
    space.set_config("preset: tiny\ncluster: {max_nodes: 2}\n")  # which Slurm's profile takes
    done = space.run("--profile", "pbs", "report")
    refused = "run: cluster.max_nodes: got 2, expected null or 1, as ranks are started across nodes"
    assert done.returncode != 0 and re.fullmatch(f"(Using profile .*\\n)*{refused}.*\\n", done.stdout), done.stdout
    space.set_config("preset: tiny\ncluster: {account: mine, max_jobs: 2, environment: {A: b c}}\n")
    profile = space.root / "pbs" / "config.yaml"
    profile.write_text(profile.read_text().replace("status-checks: 10", "status-checks: 1"))
    (space.root / "jobs").mkdir()
    stand_in(space.root, "qsub", QSUB)
    stand_in(space.root, "qstat", QSTAT)
    path = os.pathsep.join([str(space.root), str(Path(sys.executable).parent), os.environ["PATH"]])
    command, variables = ["snakemake", "--profile", "pbs", "report"], {**space.environment(), "PATH": path}
    done = subprocess.run(command, cwd=space.root, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(faulty.notes(side_file, "end").values()) == {1} and faulty.notes(side_file, "end").total() == 4
    words = [path.read_text() for path in space.root.glob("jobs/*/words")]
    assert len(words) == 2 and all("-A mine" in said and "place=scatter:excl" in said for said in words)
    (said,) = {json.dumps(row["provenance"]["cluster"], sort_keys=True) for row in space.rows("slow")}
    assert json.loads(said)["executor"] == "cluster-generic" and json.loads(said)["environment"] == {"A": "b c"}
