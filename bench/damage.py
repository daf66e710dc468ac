"""What `./run report` prints and returns after one file of each kind was damaged.

bench/damage.py [--chapter polaris] [--kind NAME ...] [--out FILE.md]

Makes a report of the tiny preset in a scratch copy of this checkout. Then, one at a time, a file of each kind is
emptied, truncated, bit-flipped or removed, and the report is run twice. It must end with a line and without a hang,
show every planned cell, and give the same tables byte for byte; where the journal or a data set was damaged, cells are
measured again, and factors and statuses must be the same. The second run must have nothing to do. Exit status 1: one
did not hold.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120
SITE = Path("results/local")
# A file of each kind: the first that the pattern finds.
KINDS = {
    "journal": SITE / "journal/tensor_dims/0.jsonl",
    "records": SITE / "records/tensor_dims/0.jsonl",
    "plan of cells": SITE / "plan/measure-tensor_dims-0.json",
    "plan of tables": SITE / "plan/present-tensor_dims.json",
    "plan of data": SITE / "plan/data-*.json",
    "plan of the report": SITE / "plan/report.json",
    "plan of the page": SITE / "plan/page.json",
    "index of plans": SITE / "plan/index.json",
    "options": SITE / "plan/options.json",
    "environment": SITE / "environments/*.json",
    "digest of data": SITE / "data/*.digest",
    "data": SITE / "data/polaris_io*/hdf5.h5",
    "table": SITE / "tables/polaris.tensor_dims.csv",
    "description of a table": SITE / "tables/polaris.tensor_dims.json",
    "captions": SITE / "tables/tensor_dims.figures.json",
    "figure": Path("report/local/figures/polaris.*.svg"),
    "page": Path("report/local/report.html"),
    "checksums of cells": SITE / "checksums/measure-tensor_dims-0.json",
    "checksums of tables": SITE / "checksums/present-tensor_dims.json",
    "checksums of data": SITE / "checksums/data-*.json",
    "checksums of the report": SITE / "checksums/report.json",
    "summary": SITE / "summary.json",
    "verdict": SITE / "verdict.txt",
    "trace": SITE / "traces/*.json.gz",
    "clock of the run": Path(".perfscribe/clock.json"),
    "what is known of the code": Path(".perfscribe/code.json"),
    "run lock": Path(".perfscribe/run.lock"),
    "mark of a start": Path(".perfscribe/started"),
}
MEASURED_AGAIN = ("journal", "data", "digest of data")


def emptied(path: Path) -> None:
    """Zero bytes."""
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    """The first half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def removed(path: Path) -> None:
    """No file."""
    path.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (emptied, truncated, flipped, removed)


class Project:
    """A scratch copy of the checkout with a finished report, which each trial starts from."""

    def __init__(self, folder: Path, chapter: str) -> None:
        self.root, self.kept, self.chapter = folder / "project", folder / "kept", chapter
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in names.stdout.decode().split("\0"):
            if (ROOT / name).is_file() and not name.startswith(("results/", "report/h", "report/c", "report/s")):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def report(self) -> tuple[int | str, list[str], float]:
        """Status, the lines printed, seconds."""
        command = [sys.executable, "-m", "perfscribe.cli", "report", "--config", "preset=tiny"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, f"chapters=[{self.chapter}]"],
                cwd=self.root,
                env={**os.environ, "PERFSCRIBE_COMMIT": "0" * 40},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S if self.kept.exists() else None,
            )
        except subprocess.TimeoutExpired:
            return "hang", [], LIMIT_S
        return done.returncode, done.stdout.splitlines(), time.monotonic() - began

    def keep(self) -> None:
        """Take the state that trials start from."""
        for name in ("results", "report", ".perfscribe"):
            shutil.copytree(self.root / name, self.kept / name, copy_function=shutil.copy2)

    def restore(self) -> None:
        """Go back to that state."""
        for name in ("results", "report", ".perfscribe"):
            shutil.rmtree(self.root / name)
            shutil.copytree(self.kept / name, self.root / name, copy_function=shutil.copy2)

    def tables(self, measured_again: bool) -> dict[str, object]:
        """Each table's bytes; where cells were measured again, what does not depend on the clock."""
        found: dict[str, object] = {}
        for path in sorted((self.root / SITE / "tables").glob("*.csv")):
            found[path.name] = list(_fixed(path)) if measured_again else path.read_bytes()
        return found


def _fixed(path: Path) -> Iterator[tuple[str, ...]]:
    """Each row's status and what comes before its first figure with a point."""
    with open(path, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            yield (str(row.get("status")), *list(row.values())[:2])


def trial(project: Project, kind: str, path: Path, damage: Callable[[Path], None]) -> tuple[list[object], bool]:
    """A row of the table, and whether all held."""
    again = kind in MEASURED_AGAIN
    before = project.tables(again)
    damage(path)
    status, lines, seconds = project.report()
    same = project.tables(again) == before
    second, second_lines, _ = project.report()
    quiet = second == 0 and any(line.startswith("nothing to do") for line in second_lines)
    told = next((line for line in lines if line.startswith("run: ")), lines[-1] if lines else "NOTHING")
    held = status == 0 and bool(lines) and same and quiet
    row = [kind, damage.__name__, status, len(lines), told, "same" if same else "DIFFER", f"{seconds:.0f}"]
    return [*row, "" if quiet else f"again: {second_lines[-1:]}"], held


def main() -> int:
    """Exit status 0, or 1 where a trial did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chapter", default="polaris")
    parser.add_argument("--kind", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows, held = [], True
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        project = Project(Path(folder), args.chapter)
        status, lines, _ = project.report()
        if status:
            print("\n".join(lines[-20:]))
            return 1
        project.keep()
        for kind in args.kind:
            for damage in DAMAGES:
                path = next(iter(sorted(project.root.glob(str(KINDS[kind])))), None)
                if path is None:
                    print(f"{kind}: no such file", flush=True)
                    break
                row, one_held = trial(project, kind, path, damage)
                rows.append(row)
                held = held and one_held
                print(" | ".join(map(str, row)), flush=True)
                project.restore()
    heads = ["file", "damage", "status", "lines", "first line that says so", "tables", "s", "second run"]
    text = tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
