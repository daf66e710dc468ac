"""Measures the cost of a large site: reading, drawing and reporting 1,280 cells in 20 rounds; a dry run of 2,000 jobs.

bench/load.py [--cells 1280] [--rounds 20] [--jobs 2000]

Works in a scratch copy of this checkout, whose journal gets a record for each planned cell and round; the scripts then
run one after the other, as the workflow starts them, with a quarter, half and all of the cells. Exit status 1: one took
more time or memory than the limits below, or grew faster than the number of records.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tabulate import tabulate  # noqa: E402
from workspace import Workspace  # noqa: E402 (a copy of the project, as tests have it)

from perfscribe import config as configuration  # noqa: E402
from perfscribe.base import files  # noqa: E402
from perfscribe.records import journal, machine  # noqa: E402
from perfscribe.run import session  # noqa: E402
from perfscribe.run.shard import Shard  # noqa: E402

LIMIT_S, LIMIT_MB, DRY_RUN_S = 60, 1000, 15
GROWTH = 1.1  # allowed growth of CPU time, relative to that of the records; above 1 for noise
START = datetime(2026, 1, 1, tzinfo=UTC)
EXPERIMENT, HEAD_DIMS = "attention", 40
TEMPLATE = ROOT / "results" / "cpu2" / "journal" / EXPERIMENT


class Spent(NamedTuple):
    """Wall and CPU time of a process and its waited-for children, and the peak memory of the largest."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def timed(root: Path, *words: str) -> Spent:
    """Run Python with these arguments; SystemExit with the end of its output if it fails."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        variables = {**os.environ, "PERFSCRIBE_COMMIT": "0" * 40, "PYTHONPATH": str(root)}
        process = subprocess.Popen([sys.executable, *words], cwd=root, env=variables, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(words)}: status {process.returncode}\n{said.read()[-2000:]}")
    return Spent(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def configure(root: Path, cells: int, rounds: int, jobs: int) -> dict[str, Any]:
    """Configure the copy for this number of cells and of cluster jobs; return the config."""
    section = {
        "device": ["cpu"],
        "seq_len": [64 + 8 * step for step in range(cells // HEAD_DIMS)],
        "head_dim": [8 * (step + 1) for step in range(HEAD_DIMS)],
        "warmup_passes": 5,
        "passes": 20,
        "rounds": rounds,
    }
    settings = {"preset": "cpu", "only": [EXPERIMENT], "cluster": {"max_jobs": jobs}}
    files.write_json(root / "config.yaml", settings | {"experiments": {EXPERIMENT: section}})  # JSON is YAML
    return configuration.load(root / "config.yaml", {})


def lines(shard: Shard) -> Iterator[bytes]:
    """Yield events for each planned cell and round: a real record of another machine with scaled samples."""
    identity = machine.identity(shard.plan["libraries"])
    name = machine.identity_id(identity)
    files.write_json_if_changed(shard.site_folder / "environments" / f"{name}.json", identity)
    like = next(record for record in journal.read(TEMPLATE).all_records() if record["status"] == "ok")
    kept = {key: like[key] for key in ("values", "series", "timers", "spent", "watch", "status", "reason")}
    draw = random.Random(0)
    for second, task in enumerate(shard.tasks):
        scale = task.cell["cost"] / 1e9 * draw.uniform(0.9, 1.1)
        varied = {
            kind: {sample: [value * scale for value in of] for sample, of in like[kind].items()}
            for kind in ("samples", "warmup")
        }
        told = {**like["provenance"], "time": (START + timedelta(seconds=second)).isoformat()}
        record = shard.fields(task, environment=name, **kept, **varied, provenance=told)
        slot = {"key": task.key, "round": task.round}
        yield journal.as_line({"event": "started", "time": second, **slot, "environment": name, "attempt": 1, "pid": 1})
        yield journal.as_line({"event": "record", "time": second, **record})


def site(root: Path, cells: int, rounds: int) -> int:
    """Plan a site and fill its journal; return the number of its records."""
    raw = configure(root, cells, rounds, 1)
    session.write_plan(root, raw, session.make_plan(root, raw))
    shard = Shard(root / "results" / "local" / "plan" / f"measure-{EXPERIMENT}-0.json", root)
    shard.folder.mkdir(parents=True, exist_ok=True)
    with open(shard.folder / "0.jsonl", "wb") as stream:
        stream.writelines(lines(shard))
    return len(shard.tasks)


def steps(root: Path) -> dict[str, Spent]:
    """Run each program that reads records, in the workflow's order; return its cost by name."""
    scripts, results, report = "workflow/scripts", "results/local", "report/local/report.md"
    records = f"{results}/records/{EXPERIMENT}/0.jsonl"
    summary, page = ("--out", report, "--summary", f"{results}/summary.json"), ("--out", "report/local/report.html")
    commands = {
        "records": ("measure", "--plan", f"{results}/plan/measure-{EXPERIMENT}-0.json", "--out", records),
        "tables and figures": ("present", "--plan", f"{results}/plan/present-{EXPERIMENT}.json", "--records", records),
        "report": ("report", "--plan", f"{results}/plan/report.json", "--records", records, *summary),
        "page": ("write_html", "--plan", f"{results}/plan/page.json", "--report", report, *page),
        "verdict": ("verdict", "--records", records, "--out", f"{results}/verdict.txt"),
    }
    found = {name: timed(root, f"{scripts}/{words[0]}.py", *words[1:]) for name, words in commands.items()}
    wall_s, cpu_s, peak_mb = zip(*found.values(), strict=True)
    together = Spent(sum(wall_s), sum(cpu_s), max(peak_mb))
    return found | {"together": together}


def dry_run(root: Path, cells: int, jobs: int) -> Spent:
    """Cost of a dry run on a cluster, with cells distributed over this number of jobs."""
    configure(root, cells, 1, jobs)
    asked = ("report", "--dry-run", "--quiet", "--executor", "slurm", "--jobs", "100")
    timed(root, "-m", "perfscribe.cli", *asked)  # fills the cache of code analysis
    return timed(root, "-m", "perfscribe.cli", *asked)


def main() -> int:
    """Print the table; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1280, help=f"a multiple of {4 * HEAD_DIMS}, from which it is cut")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2000)
    args = parser.parse_args()
    rows, beyond = [], []
    found: dict[int, dict[str, Spent]] = {}
    for cells in (args.cells // 4, args.cells // 2, args.cells):
        with tempfile.TemporaryDirectory(prefix="load-") as scratch:
            root = Workspace(Path(scratch) / "project").root
            count = site(root, cells, args.rounds)
            found[count] = steps(root)
        rows += [[name, count, *spent] for name, spent in found[count].items()]
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        dry = dry_run(Workspace(Path(scratch) / "project").root, max(args.cells, args.jobs), args.jobs)
    rows.append([f"dry run of {args.jobs} jobs", "", *dry])
    half, whole = list(found)[1:]
    total = found[whole]["together"]
    for what, got, limit in (
        ("s of all steps", total.wall_s, LIMIT_S),
        ("MB at most", total.peak_mb, LIMIT_MB),
        ("s of the dry run", dry.wall_s, DRY_RUN_S),
        ("of a half's processor time", total.cpu_s / found[half]["together"].cpu_s, whole / half * GROWTH),
    ):
        if got > limit:
            beyond.append(f"{got:.1f} {what}, expected {limit:g} at most")
    heads = ["step", "records", "s", "processor s", "peak MB"]
    print(tabulate(rows, heads, tablefmt="github", floatfmt=".1f"), *beyond, sep="\n")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
