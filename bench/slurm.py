"""Wall time of a whole run under Slurm beside that of one on this machine, and where the difference goes.

    python bench/slurm.py [--experiments NAME ...] [--chapters NAME ...]

Both runs start from nothing, with preset tiny, in trees of their own. Where there is no Slurm, one of two nodes is
started on this machine (tests/slurm/local_slurm.py: root on Debian); its nodes share this machine's cores, so that the
run under it has no more of them than the other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "slurm")]

import yaml  # noqa: E402
from local_slurm import LocalSlurm, NotHere  # noqa: E402
from workspace import Workspace  # noqa: E402

from perfscribe.base import registry  # noqa: E402

STAMP = "%Y-%m-%dT%H:%M:%S"


@dataclass
class Job:
    """One job of Slurm: seconds from its submission to its start, of its run, until Snakemake saw its end."""

    rule: str
    queued_s: float
    ran_s: float
    unseen_s: float
    submitted: float
    seen: float


@contextlib.contextmanager
def some_slurm() -> Iterator[Mapping[str, str]]:
    """Variables for commands of the cluster at hand, else of one of this machine's own."""
    if shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True).returncode == 0:
        yield dict(os.environ)
        return
    try:
        with LocalSlurm() as cluster:
            yield cluster.environment()
    except NotHere as reason:
        sys.exit(f"slurm: {reason}")


def tree(folder: Path, experiments: Sequence[str], chapters: Sequence[str]) -> Workspace:
    """A tree with preset tiny, some experiments switched off where others are named."""
    space = Workspace(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["preset"] = "tiny"
    config["chapters"] = list(chapters) or config["chapters"]
    for name in registry.measured():
        config["experiments"].setdefault(name, {})["enabled"] = not experiments or name in experiments
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return space


def timed(space: Workspace, arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[float, str]:
    """Wall seconds of snakemake with these arguments, and what it said."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments, "report"],
        cwd=space.root,
        env={**variables, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit("\n".join(line[:200] for line in done.stdout.splitlines()[-30:]))
    return took, done.stdout


def jobs_of(log: str, variables: Mapping[str, str]) -> list[Job]:
    """Every job of a run, from Snakemake's log and from what Slurm still knows."""
    said = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--format=%i %V %S %e"], capture_output=True, text=True, env=variables
    )
    known = {line.split()[0]: [_seconds(word) for word in line.split()[1:4]] for line in said.stdout.splitlines()}
    rules = dict(re.findall(r"^Finished jobid: (\d+) \(Rule: (\w+)\)", log, re.MULTILINE))
    seen, now, found = {}, 0.0, []
    for line in log.splitlines():
        if stamp := re.fullmatch(r"\[(\w{3} \w{3} +\d+ \d+:\d+:\d+ \d+)\]", line):
            now = datetime.strptime(stamp[1], "%a %b %d %H:%M:%S %Y").timestamp()
        elif end := re.match(r"Finished jobid: (\d+)", line):
            seen[end[1]] = now
    for jobid, number in re.findall(r"^Job (\d+) has been submitted with SLURM jobid (\d+)", log, re.MULTILINE):
        submitted, started, ended = known[number]
        found.append(
            Job(rules[jobid], started - submitted, ended - started, seen[jobid] - ended, submitted, seen[jobid])
        )
    return found


def _seconds(stamp: str) -> float:
    return datetime.strptime(stamp, STAMP).timestamp()


def levels(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that make data sets, then those that measure: the others wait for no job of the cluster."""
    both = [[job for job in jobs if (job.rule == "measure") == measures] for measures in (False, True)]
    return [level for level in both if level]


def main() -> None:
    """Run both and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="*", default=[], choices=registry.measured(ROOT))
    parser.add_argument("--chapters", nargs="*", default=[])
    args = parser.parse_args()
    with some_slurm() as variables, tempfile.TemporaryDirectory(prefix="perfscribe-bench-") as folder:
        spaces = []
        for name in ("local", "slurm"):
            (Path(folder) / name).mkdir()
            spaces.append(tree(Path(folder) / name, args.experiments, args.chapters))
        local_s, _ = timed(spaces[0], ["--cores", "all", "--nolock"], variables)
        slurm_s, log = timed(spaces[1], ["--profile", "slurm"], variables)
        jobs = jobs_of(log, variables)
    of = levels(jobs)
    print(f"on this machine      {local_s:6.1f} s")
    print(f"under Slurm          {slurm_s:6.1f} s, {len(jobs)} jobs on {len(of)} levels")
    print(f"more a level         {(slurm_s - local_s) / len(of):6.1f} s")
    for part, text in (("queued_s", "in the queue"), ("ran_s", "running"), ("unseen_s", "ended and not seen")):
        times = [getattr(job, part) for job in jobs]
        print(f"a job {text:19}{statistics.median(times):6.1f} s median, {max(times):.1f} s at most")
    for number, level in enumerate(of, start=1):
        span = max(job.seen for job in level) - min(job.submitted for job in level)
        print(f"level {number}: {len(level)} jobs, {span:.1f} s from first submission to last end that was seen")


if __name__ == "__main__":
    main()
