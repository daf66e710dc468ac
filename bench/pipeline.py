"""How long a run takes: a fresh report, the same again, an edit, the committed sites drawn again.

bench/pipeline.py [--preset cpu] [--chapter NAME] [--out FILE.md]

Works in a clone of this checkout's commit, with this checkout's environment. Exit status 1: a run failed, or the second
did something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]


def timed(folder: Path, *words: str) -> tuple[float, str]:
    """Seconds of `./run WORDS` in a clone, and what it printed; SystemExit where it failed."""
    began = time.perf_counter()
    done = subprocess.run(["./run", *words], cwd=folder, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"./run {' '.join(words)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds, done.stdout + done.stderr


def spent(folder: Path) -> dict[str, float]:
    """Seconds that each experiment's cells took, from the records of site local."""
    found: dict[str, float] = {}
    for path in (folder / "results" / "local" / "records").glob("*/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["experiment"]] = found.get(row["experiment"], 0.0) + float(row["spent"].get("wall_s", 0.0))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--chapter", default="", help="cs336, polaris or fsdp alone")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    config = ["--config", f"preset={args.preset}", *([f"chapters=[{args.chapter}]"] if args.chapter else [])]
    with tempfile.TemporaryDirectory(prefix="perfscribe-pipeline-") as scratch:
        folder = Path(scratch) / "checkout"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
        timed(folder, "help")  # the first start of an environment checks the lock
        fresh, _ = timed(folder, "report", *config)
        measuring = spent(folder)
        again, told = timed(folder, "report", *config)
        kernel = folder / "perfscribe" / "experiments" / "attention" / "show.py"
        kernel.write_text(kernel.read_text(encoding="utf-8") + "\nEDITED = True\n", encoding="utf-8")
        edited, _ = timed(folder, "report", *config)
        redrawn, _ = timed(folder, "publish", "--redraw")
    rows = [
        ["fresh report", fresh],
        ["of it in cells", sum(measuring.values())],
        ["the same again", again],
        ["after an edit of a show.py", edited],
        ["committed sites drawn again", redrawn],
        *([f"cells of {name}", seconds] for name, seconds in list(measuring.items())[:5]),
    ]
    table = tabulate(rows, headers=["what", "s"], tablefmt="github", floatfmt=".1f")
    print(table)
    if args.out:
        args.out.write_text(table + "\n", encoding="utf-8")
    return 0 if "nothing to do" in told.lower() else 1


if __name__ == "__main__":
    sys.exit(main())
