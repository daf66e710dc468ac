"""Plants each fault of faults.yaml in a copy of the working tree and tells whether the tests named for it notice.

python tests/planted/plant.py [--list] [--only ID ...] [--limit SECONDS]

caught: a test fails, or the tests take longer than the limit. missed: all pass. stale: the text to be replaced does not
stand in its file exactly once. The tests are taken to pass without a fault. Exit status 1 where a fault is stale.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.yaml")
Fault = dict[str, Any]


def load() -> list[Fault]:
    """All faults, in the order of the file."""
    return list(yaml.safe_load(FAULTS.read_text(encoding="utf-8")))


def planted(fault: Fault, root: Path = ROOT) -> str | None:
    """The file's text with the fault in it; None where it is stale."""
    text = path.read_text(encoding="utf-8") if (path := root / fault["file"]).is_file() else ""
    return text.replace(fault["old"], fault["new"]) if text.count(fault["old"]) == 1 else None


def copy_tree(scratch: Path) -> None:
    """Copy the working tree, untracked files too; tests that ask git find the same commits there."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(scratch)], check=True)
    listed = subprocess.check_output([*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in sorted(set(os.fsdecode(listed).split("\0")) - {"", ".venv"}):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, scratch / name, follow_symlinks=False)
    subprocess.run(["git", "-C", str(scratch), "reset", "-q"], check=True)
    (scratch / ".git" / "info" / "exclude").write_text(".venv\n")
    (scratch / ".venv").symlink_to((ROOT / ".venv").resolve())


def run_tests(names: Sequence[str], folder: Path, limit_s: float) -> tuple[str, str]:
    """caught or missed, and by which test."""
    command = [str(folder / ".venv" / "bin" / "python"), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names]
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        process = subprocess.Popen(command, cwd=folder, stdout=told, stderr=told, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return "caught", f"longer than {limit_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told.seek(0)
        said = told.read()
    if code > 2:  # no tests, or a wrong command line
        sys.exit(f"pytest {' '.join(names)}: exit status {code}: {said[-2000:]}")
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return ("caught" if code else "missed"), (found[1] if found else "")


def try_one(fault: Fault, folder: Path, limit_s: float) -> tuple[str, str]:
    """The outcome of one fault, and by which test it was caught."""
    text = planted(fault, folder)
    if text is None:
        return "stale", f"{fault['file']}: {fault['old']!r} is not there exactly once"
    (folder / fault["file"]).write_text(text, encoding="utf-8")
    try:
        return run_tests(fault["tests"], folder, limit_s)
    finally:
        shutil.copyfile(ROOT / fault["file"], folder / fault["file"])


def main() -> int:
    """One line for each fault, then the share that was caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults alone")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of a fault")
    arguments = parser.parse_args()
    faults = load()
    chosen = [fault for fault in faults if not arguments.only or fault["id"] in arguments.only]
    if unknown := set(arguments.only or ()) - {fault["id"] for fault in chosen}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if arguments.list:
        print(*(f"{fault['id']}: {fault['file']}: {fault['why']}" for fault in chosen), sep="\n")
        return 0
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / "tree"
        copy_tree(folder)
        for fault in chosen:
            began = time.monotonic()
            outcome, by = try_one(fault, folder, arguments.limit)
            counts[outcome] += 1
            print(f"{outcome} {time.monotonic() - began:5.0f} s  {fault['id']}  {by}".rstrip(), flush=True)
    share = f"{counts['caught']} of {len(chosen)} ({counts['caught'] / len(chosen):.0%})"
    print(f"caught {share}, missed {counts['missed']}, stale {counts['stale']}")
    return 1 if counts["stale"] else 0


if __name__ == "__main__":
    sys.exit(main())
