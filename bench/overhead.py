"""How much of a run is spent measuring, and what a process a cell would cost instead.

bench/overhead.py [--preset gpu] [--experiment attention] [--rounds N] [--passes N] [--out FILE]

Runs the experiment's grid through the worker in a scratch folder and prints for each run: wall seconds of the job,
warm-up + timed seconds inside the cells, overhead (the difference). First twice as a real run would, all cells in one
child: the share (warm-up + timed) / wall of the first run on a machine, which reads its libraries from disk, and of
the next. Then, in turns, all cells in one child and each cell in a child of its own, with the passes cut to --passes,
which leaves the overhead as it is: the first over the second, medians of --rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe import config  # noqa: E402
from perfscribe.base import files  # noqa: E402
from perfscribe.plan import plan  # noqa: E402


def prepare(folder: Path, experiment: str, preset: str, passes: int | None, isolation: str) -> Path:
    """Write a plan of the experiment's own cells, all in one shard; returns its file."""
    raw = config.load(ROOT / "config.yaml")
    section = raw.setdefault("experiments", {}).setdefault(experiment, {})
    section |= {"shards": 1, "isolation": isolation, "rounds": 1}
    if passes:
        section |= {"passes": passes, "warmup_passes": 1}
    made = plan.build(raw, preset, ROOT)
    unit = made.units[f"measure-{experiment}-0"]
    unit["cells"] = [cell for cell in unit["cells"] if not cell["skip"]]
    target = folder / "plan" / f"measure-{experiment}-0.json"
    files.write_json(target, unit)
    files.write_json(target.with_name("options.json"), plan.options(config.resolve(raw, preset)))
    return target


def run_once(experiment: str, preset: str, passes: int | None, isolation: str) -> dict[str, float | str | int]:
    """One job over the whole grid, and where its time went."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        unit = prepare(folder, experiment, preset, passes, isolation)
        out = folder / "records.jsonl"
        command = [sys.executable, "workflow/scripts/measure.py", "--plan", str(unit), "--site-folder", scratch]
        started = time.perf_counter()
        subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, capture_output=True)
        wall_s = time.perf_counter() - started
        rows = files.read_json_lines(out)
    inside_s = sum(row["spent"]["warmup_s"] + row["spent"]["timed_s"] for row in rows)
    return {
        "children": "one for all cells" if isolation == "job" else "one a cell",
        "cells": len(rows),
        "ok": sum(row["status"] == "ok" for row in rows),
        "wall_s": wall_s,
        "warmup_and_timed_s": inside_s,
        "share": inside_s / wall_s,
        "overhead_s": wall_s - inside_s,
    }


def overhead_s(results: list[dict[str, float | str | int]], children: str) -> float:
    """Median over the runs of one kind."""
    return statistics.median(float(row["overhead_s"]) for row in results if row["children"] == children)


def in_turns(args: argparse.Namespace) -> list[dict[str, float | str | int]]:
    """Runs with few passes, all cells in one child and one a cell by turns, so that a machine's drift hits both."""
    kinds = ["job", "cell"] * args.rounds
    return [{"run": "cut"} | run_once(args.experiment, args.preset, args.passes, kind) for kind in kinds]


def main() -> None:
    """Compare, print a table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="attention")
    parser.add_argument("--preset", default="gpu", choices=plan.PRESETS)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs with few passes")
    parser.add_argument("--passes", type=int, default=3, help="passes a cell in those")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the figures")
    args = parser.parse_args()
    whole = [{"run": run} | run_once(args.experiment, args.preset, None, "job") for run in ("first", "next")]
    cut = in_turns(args)
    one, each = (overhead_s(cut, children) for children in ("one for all cells", "one a cell"))
    print(tabulate([r.values() for r in (*whole, *cut)], list(cut[0]), floatfmt=".3g"))
    print(f"overhead of one child for all cells, as a share of one a cell's: {one / each:.3f}")
    if args.out:
        args.out.write_text(json.dumps({"results": [*whole, *cut], "ratio": one / each}, indent=1) + "\n")


if __name__ == "__main__":
    main()
