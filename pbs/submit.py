#!/usr/bin/env python3
"""Submit a job script of Snakemake to PBS and print the job's number.

submit.py JOBSCRIPT

The script's line `# properties = {...}` holds the job's resources, by the names of Snakemake's Slurm executor.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOGS = Path(".snakemake/pbs_logs")
NUMBER = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?")


def properties(script: Path) -> dict[str, Any]:
    """What Snakemake says of the job. SystemExit where it says nothing."""
    found = re.search(r"^# properties = (\{.*\})$", script.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"submit: {script} has no line `# properties = ...`")
    return dict(json.loads(found[1]))


def chunk(resources: Mapping[str, Any]) -> str:
    """PBS's `select`: nodes, and what is asked for on each."""
    nodes = int(resources.get("nodes", 1))
    parts = {"mem": f"{resources['mem_mb']}mb" if resources.get("mem_mb") else ""}
    cores = int(resources.get("cpus_per_task", 1))
    parts["ncpus"] = str(cores) if cores > 0 else ""
    gres = re.fullmatch(r"gpu:(\d+)", str(resources.get("gres", "")))
    parts["ngpus"] = str(resources.get("gpu", "")) or (gres[1] if gres else "")
    asked = "".join(f":{name}={value}" for name, value in parts.items() if value)
    names = re.findall(r"--nodelist=(\S+)", str(resources.get("slurm_extra", "")))
    if names:
        return "+".join(f"1{asked}:host={name}" for name in names[0].split(","))
    return f"{nodes}{asked}"


def command(job: Mapping[str, Any], script: str) -> list[str]:
    """qsub's words."""
    resources = job.get("resources", {})
    minutes = int(resources.get("runtime", 60))
    alone = ":excl" if "--exclusive" in str(resources.get("slurm_extra", "")) else ""
    name = "-".join([str(job.get("rule", "job")), *map(str, job.get("wildcards", {}).values())])
    words = ["qsub", "-N", re.sub(r"[^\w-]", "_", name)[:15], "-V", "-j", "oe", "-o", f"{LOGS}/"]
    words += ["-l", f"select={chunk(resources)}", "-l", f"place=scatter{alone}"]
    words += ["-l", f"walltime={minutes // 60:02d}:{minutes % 60:02d}:00"]
    for option, resource in (("-l", "constraint"), ("-A", "slurm_account"), ("-q", "slurm_partition")):
        if resources.get(resource):
            words += [option, str(resources[resource])]
    return [*words, script]


def main() -> int:
    """Submit; qsub's own words go to standard error where it refuses."""
    script = sys.argv[1]
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command(properties(Path(script)), script), capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("submit: there is no qsub on PATH")
    number = NUMBER.search(done.stdout)
    if done.returncode or number is None:
        print(done.stdout + done.stderr, file=sys.stderr)
        return done.returncode or 1
    print(number[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
