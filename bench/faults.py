"""Seeded faults: injects a fault into a report and checks what the next `./run report` makes of it.

bench/faults.py [--trials 300] [--seed 0] [--kind NAME ...] [--only N ...] [--light]

Each trial starts from a finished tiny report in a scratch copy of this checkout, injects one fault, and lets the next
run finish. It holds if

- the next run succeeds without help; if a cell failed, or a folder's name is impossible, a line names the problem and a
  remedy that works; the run after it has nothing to do,
- columns in which three undisturbed runs agree are unchanged in every row,
- no finished cell is measured twice except those whose journal line or data set was damaged,
- no process is left.

Every second trial damages a file: each one below results/ and .perfscribe/ in turn. Seed, number and kinds determine a
trial (--only N), apart from the machine's speed. Disk full and read-only are mounts in the trial's own namespace; where
none is allowed they are `not here`. --light, for the tests, omits the real experiment, ranks and the run after the next
one; it makes one undisturbed run and does not compare times with it. Exit status 1: a trial did not hold.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# Otherwise scratch copies would compile torch again, into the folder that each trial copies.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import sessions  # noqa: E402
from workspace import Workspace  # noqa: E402

from perfscribe.records import journal  # noqa: E402

LIMIT_S, END_S = 300, 20
SITE = Path("results/local")
MADE = ("results", "report/local", ".perfscribe", ".snakemake", "logs")
DAMAGES = ("truncated", "flipped", "removed", "emptied")
# Cells on two ranks. A file `hang` in the root names a cell, a rank, and how that rank hangs.
PRELOADED = 'PRELOADED = ("torch", "torch.distributed")\n'
MEASURE = """import os
import signal
import time

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data.layout import file_names

FORMATS = ["npy", "hdf5"]
SHAPE = {"samples": 16, "source_length": 1, "target_length": 4, "features": 8}


def datasets(config):
    return {"probe": {"parameters": {**SHAPE, "seed": 0}, "formats": FORMATS, "files": file_names(FORMATS)}}


def cells(config):
    return [Cell({"n": n, "ranks": config["ranks"]}, cost=n, data=("probe",)) for n in config["n"]]


def run(cell):
    began = time.perf_counter()
    arguments = {"n": cell["n"], "file": os.path.join(cell.data_folder, "probe", "npy", "source.npy")}
    if cell["ranks"] == 1:
        sums = [on_rank(arguments)]
    else:
        from perfscribe.distributed import launch

        sums = launch.waiting(on_rank, timeout_s=500, world_size=cell["ranks"]).ask(arguments, 500)
    elapsed_ms = 1e3 * (time.perf_counter() - began)
    return Measurement({"time_ms": [elapsed_ms]}, timers={"time_ms": "host clock"}, values={"sum": sums[0]})


def on_rank(arguments, rank=None):
    import numpy

    place = rank.place.rank if rank else 0
    if os.path.exists("hang"):
        cell, lost, how = open("hang").read().split()
        if (int(cell), int(lost)) == (arguments["n"], place):
            os.kill(os.getpid(), signal.SIGSTOP) if how == "stopped" else time.sleep(1000)
    time.sleep(0.2)
    total = float(numpy.load(arguments["file"]).sum()) * (arguments["n"] + place)
    if rank:
        import torch

        exchanged = torch.tensor(total)
        torch.distributed.all_reduce(exchanged)
        total = float(exchanged)
    return total
"""
SHOW = '''"""Their table."""
from perfscribe.show import tables as t

TABLES = ("cs336.probe",)


def tables(records):
    columns = [t.factor("n", "n"), t.value("sum", "Sum"), t.median("time_ms", "Time (ms)")]
    return [t.make(TABLES[0], "probe", records["probe"], columns)]
'''
CELLS, REAL = 5, "io_formats"
JOURNAL, RECORDS = "results/local/journal/probe", "results/local/records/probe"
OF_LOAD = ("flags",)  # columns about disturbances, which three runs need not share
# Process names by a word on the command line: the first is the topmost process with it, the second its child, ...
ROLES = {
    "perfscribe.cli": ("parent",),
    "perfscribe.run.engine": ("engine",),
    "workflow/scripts/measure.py": ("supervisor", "worker"),
    "perfscribe.run.child": ("child",),
    "multiprocessing.forkserver": ("server", "rank"),
    **{f"workflow/scripts/{name}.py": ("drawing",) for name in ("present", "report", "write_html", "verdict")},
}
# Arguments: folder, a second folder for its content, bytes, command. The hidden content is restored at the end.
FULL = """mount --bind "$1" "$2" && mount -t tmpfs -o "size=$3" none "$1" && cp -a "$2"/. "$1"/ || exit 99
"${@:4}"; code=$?
find "$2" -mindepth 1 -delete; cp -a "$1"/. "$2"/; exit $code"""
READ_ONLY = """mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99
"${@:4}"; exit $?"""

Outcome = tuple[str, list[str]]  # the fault, and violations


class NotDone(Exception):
    """The fault did not happen: missed, as the run ended before it; or not here, as this machine forbids it."""


class Project(Workspace):
    """A scratch copy of the checkout, with the finished report from which each trial starts."""

    def __init__(self, folder: Path, light: bool) -> None:
        super().__init__(folder / "project")
        self.folder, self.home, self.said, self.light = folder, self.root, "", light
        self.only(*([] if light else [REAL]))
        measure, ranks = (MEASURE, 1) if light else (PRELOADED + MEASURE, 2)
        self.add_experiment("probe", measure, SHOW, n=list(range(CELLS)), ranks=ranks)
        if not light:
            with open(self.root / "config.yaml", "a", encoding="utf-8") as stream:
                stream.write(f"experiments: {{{REAL}: {{format: [memory, npy, hdf5]}}}}\n")
        tables = []
        for _ in range(1 if light else 3):
            self.forget("results", "report/local")
            began = time.monotonic()
            if self.finish():
                sys.exit(self.said)
            self.seconds = time.monotonic() - began
            tables.append(self.columns())
        fixed = {name: rows for name, rows in tables[0].items() if all(table.get(name) == rows for table in tables)}
        self.fixed = {name: rows for name, rows in fixed.items() if not (light and "time_ms" in name)}
        self.slots = set(self.measured()[0])
        for name in MADE:
            shutil.copytree(self.root / name, folder / "kept" / name, symlinks=True)
        places = (path.relative_to(self.root) for name in ("results", ".perfscribe") for path in self.below(name))
        files = sorted(path for path in places if "bytecode" not in path.parts)  # Python validates bytecode itself
        # Random order, but journals first, since nothing else can restore them.
        self.files = sorted(random.Random(0).sample(files, len(files)), key=lambda path: "journal" not in path.parts)

    def below(self, name: str) -> list[Path]:
        """Files below a folder."""
        return [path for path in (self.root / name).rglob("*") if path.is_file()]

    def pages(self, name: str) -> int:
        """Number of pages that a file system in memory needs for a folder."""
        return sum(-(-path.stat().st_size // 4096) for path in self.below(name))

    def forget(self, *names: str) -> None:
        """Delete files and folders."""
        for path in (self.root / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def restore(self) -> None:
        """Restore the finished report and the folder's original name."""
        self.root = self.root.rename(self.home)
        self.forget(*MADE, "hang")
        for name in MADE:
            shutil.copytree(self.folder / "kept" / name, self.root / name, symlinks=True)

    def begin(self, *words: str, before: Sequence[str] = (), log: str = "out.log") -> sessions.Process:
        """Start a report."""
        command = [*before, *self.command("report", "--config", "preset=tiny", *words)]
        return sessions.Process(command, self.root, self.environment(), self.folder / log)

    def end(self, run: sessions.Process) -> int | str:
        """Wait for a run and its processes; return the exit status or "hang", and set `said` to its output."""
        code: int | str = "hang"
        with suppress(subprocess.TimeoutExpired, AssertionError):
            code = run.wait(LIMIT_S)
        run.kill_all()
        self.said = run.log()
        return code

    def finish(self, *words: str, before: Sequence[str] = ()) -> int | str:
        """Run a report to its end."""
        return self.end(self.begin(*words, before=before))

    def columns(self) -> dict[str, list[str]]:
        """All columns of all tables, except OF_LOAD."""
        found = {}
        for path in sorted((self.root / SITE / "tables").glob("*.csv")):
            with open(path, newline="", encoding="utf-8") as stream:
                for head, *cells in zip(*csv.reader(stream), strict=True):
                    found[f"{path.stem}: {head}"] = list(cells)
        return {name: cells for name, cells in found.items() if not name.endswith(OF_LOAD)}

    def measured(self) -> tuple[dict[object, str], int]:
        """Ids of valid journal records by cell, and the number of cells started although they had one."""
        ids: dict[object, str] = {}
        again = 0
        for path in sorted((self.root / SITE / "journal").glob("*/*.jsonl")):
            for line in path.read_bytes().split(b"\n")[:-1]:  # without a torn last line
                with suppress(ValueError):
                    event = journal.parse(line)
                    if event["event"] == "retired":
                        ids = {cell: one for cell, one in ids.items() if one not in event["ids"]}
                    cell = (event.get("key"), event.get("round"))
                    again += event["event"] == "started" and cell in ids
                    if event["event"] == "record":
                        ids[cell] = event["id"]
        return ids, again

    def orphans(self) -> list[str]:
        """Processes whose working directory or environment mentions the scratch folder."""
        mark, found = os.fsencode(self.folder), []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in os.fsencode(os.readlink(place / "cwd")) + b"\0" + (place / "environ").read_bytes():
                    found.append(f"left behind: {(place / 'cmdline').read_bytes()[:200]!r}")
        return found


def role(process: psutil.Process) -> str:
    """Role of a process in a run; "" for any other process."""
    words = _words(process)
    for name, roles in ROLES.items():
        if name in words:
            return dict(enumerate(roles)).get(sum(name in _words(parent) for parent in process.parents()), "")
    return ""


def _words(process: psutil.Process) -> list[str]:
    """Words of the command line; of Python's `-c "from MODULE import ..."` the module."""
    return [word.removeprefix("from ").partition(" import ")[0] for word in process.cmdline()]


def begun(project: Project, draw: random.Random, share: float = 1.0) -> tuple[sessions.Process, str]:
    """Start a run with cells to measure and wait for a random moment within this share of it."""
    lost = draw.choice([(JOURNAL, RECORDS)] * 3 + [("results", "report/local")])
    project.forget(*lost)
    run = project.begin()
    lines, delay_s = draw.randrange(int(2 * CELLS * share) + 1), draw.random() * 0.4
    if draw.random() < 0.4:
        lines, delay_s = 0, draw.random() * project.seconds * share
    while run.alive() and sessions.text_of(project.root / JOURNAL / "0.jsonl").count("\n") < lines:
        time.sleep(0.01)
    time.sleep(delay_s)
    return run, f"without {lost[0]}, after {lines} lines and {delay_s:.2f} s"


def stop(project: Project, draw: random.Random, number: signal.Signals) -> Outcome:
    """Send a signal to the process that the user started, perhaps twice."""
    run, moment = begun(project, draw)
    twice = draw.random() < 0.3
    for _ in range(1 + twice):
        if run.alive():
            os.kill(run.pid, number)
            time.sleep(draw.random() * twice)
    code = project.end(run)
    if code == 0:
        raise NotDone("missed")
    wanted = (-number, 128 + number)  # equivalent for a shell
    return f"{moment}{', twice' * twice}", [f"exit status {code}"] * (code not in wanted)


def kill(project: Project, draw: random.Random, wanted: str) -> Outcome:
    """Send SIGKILL to one process, waiting for its start, or to all."""
    run, moment = begun(project, draw, 1.0 if wanted in ("parent", "engine", "all", "drawing") else 0.5)
    victim = None
    while run.alive() and victim is None:
        for process in run.members():
            with suppress(psutil.Error):
                victim = process if wanted in ("all", role(process)) else victim
    if victim is None:
        project.end(run)
        raise NotDone("missed")
    run.kill_tree() if wanted == "all" else victim.kill()
    code = project.end(run)
    return f"{moment}: exit status {code}", ["no end"] * (code == "hang")


def mount(project: Project, draw: random.Random, script: str, refusal: str) -> Outcome:
    """Mount over a folder of the project, so that it becomes full at some page, or is read-only."""
    name = draw.choice(["results", "report/local", ".perfscribe", ".snakemake", "logs", JOURNAL])
    folder, beside = project.root / name, project.folder / "beside"
    finished = project.pages(name)
    project.forget(JOURNAL, RECORDS, *[name] * draw.choice((0, 1, 1)))
    for path in (folder, beside):
        path.mkdir(parents=True, exist_ok=True)
    used = project.pages(name)
    pages = max(1, used + draw.randrange(max(1, finished - used)))
    begin = ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "mount", str(folder), str(beside)]
    code = project.finish(before=[*begin, str(4096 * pages)])
    if code == 99 or "unshare: unshare failed" in project.said:
        raise NotDone("not here")
    return f"{name}, {pages} pages: exit status {code}", [f"no {refusal}"] * (code != 0 and refusal not in project.said)


def hang(project: Project, draw: random.Random) -> Outcome:
    """Let a rank miss its collective: the cell must time out, and the run continue."""
    cell, how = draw.randrange(1, CELLS), draw.choice(["stopped", "asleep"])
    project.forget(JOURNAL, RECORDS)
    (project.root / "hang").write_text(f"{cell} {draw.randrange(2)} {how}")
    code = project.finish("experiments={probe: {timeout_s: 8}}")
    project.forget("hang")
    told = code == 0 and f"probe n={cell}: timeout longer" in project.said
    return f"cell {cell}, {how}", [f"exit status {code}, and no time-out"] * (not told)


def two_runs(project: Project, draw: random.Random) -> Outcome:
    """Start a second run next to the first: one must be refused and name the other."""
    first, moment = begun(project, draw)
    ends = []
    for run in (project.begin(log="second.log"), first):
        code = project.end(run)
        refused = code == 1 and project.said.startswith("run: another run is under way in this checkout: process ")
        ends.append("refused" if refused and project.said.count("\n") == 1 else str(code))
    return moment, [f"ended as {ends}"] * ("0" not in ends or not set(ends) <= {"0", "refused"})


def name(project: Project, draw: random.Random) -> Outcome:
    """Rename the folder: everything is measured, or the name is refused in one line."""
    odd = "a{}b{}".format(*draw.sample([*" '\"\n#\\*;&%", "{n}", "$HOME", "ü"], 2))
    project.forget("results/local", "report/local")
    project.root = project.root.rename(project.folder / odd)
    code = project.finish()
    if code == 0:
        return repr(odd), []
    project.root = project.root.rename(project.home)
    lines = project.said.splitlines()
    return f"{odd!r}: refused", ["not in a line"] * (len(lines) != 1 or "give the folder another name" not in lines[0])


def damage(project: Project, draw: random.Random, number: int) -> Outcome:
    """Damage one file: each in turn, then each again in another way."""
    rounds, turn = divmod(number, len(project.files))
    place, how = project.files[turn], DAMAGES[(rounds + turn) % len(DAMAGES)]
    path = project.root / place
    content = bytearray(path.read_bytes())
    if how == "flipped" and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif content:
        del content[draw.randrange(len(content)) if how == "truncated" else 0 :]
    path.unlink() if how == "removed" else path.write_bytes(content)
    return f"{place} {how}", []


def check(project: Project, before: str = "", new_keys: bool = False) -> list[str]:
    """List what does not hold after the next run, and after the one after that.

    before: earlier output. new_keys: a data set may have changed, and with it the keys of its cells.
    """
    kept = set(project.measured()[0].values())
    code, said = project.finish(), before + project.said
    wrong = [f"the next run: exit status {code}"] * (code != 0) + ["Traceback"] * ("Traceback" in said)
    rows = {name: project.rows(name) for name in ("probe", REAL)}
    for experiment, status in sorted({(one, row["status"]) for one in rows for row in rows[one]}):
        if status in ("failed", "timeout"):
            mend = ["remeasure", experiment, f"status={status}"]
            wrong += [f"nothing says ./run {' '.join(mend)}"] * (f"./run {' '.join(mend)}" not in said)
            wrong += ["which mends nothing"] * (project.run(*mend).returncode != 0 or project.finish() != 0)
            kept -= {row["id"] for row in rows[experiment] if row["status"] == status}
    records, again = project.measured()
    wrong += [f"{again} cells measured again"] * (again > 0)
    wrong += [f"{len(kept - set(records.values()))} finished cells lost"] * (not kept <= set(records.values()))
    wrong += ["other cells than planned"] * (set(records) != project.slots and not new_keys)
    now = project.columns()
    wrong += [f"column {name} differs" for name, cells in project.fixed.items() if now.get(name) != cells]
    quiet = project.light or (project.finish() == 0 and project.said.startswith("nothing to do"))
    wrong += [f"the run after: {project.said}"] * (not quiet)
    return wrong + [said] * bool(wrong)


Kind = Callable[[Project, random.Random], Outcome]
KINDS: dict[str, Kind] = {
    **{f"kill {process}": partial(kill, wanted=process) for process in [*sum(ROLES.values(), ()), "all"]},
    **{name: partial(stop, number=signal.Signals[f"SIG{name}"]) for name in ("INT", "TERM", "HUP")},
    "disk full": lambda p, d: mount(p, d, FULL, "No space left on device"),
    "read-only": lambda p, d: mount(p, d, READ_ONLY, "Read-only file system"),
    "hung collective": hang,
    "two runs": two_runs,
    "folder name": name,
}


def trial(project: Project, kind: str, number: int, draw: random.Random) -> tuple[str, list[str]]:
    """Run a trial; return the fault and violations. number: index among trials of its kind."""
    project.restore()
    project.said = ""
    what, wrong = damage(project, draw, number) if kind == "file" else KINDS[kind](project, draw)
    wrong += [project.said] * bool(wrong)
    deadline = time.monotonic() + END_S
    while (left := project.orphans()) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong += left + check(project, project.said, "local/data/" in what) + project.orphans()
    return what, wrong


def main() -> int:
    """Run the trials; return 1 if one did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="+", choices=["file", *KINDS])
    parser.add_argument("--only", type=int, nargs="+", metavar="N")
    parser.add_argument("--light", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of shells, and children, ignore it
    kinds = args.kind or [kind for other in KINDS for kind in ("file", other)]
    ends: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        project = Project(Path(folder).resolve(), args.light)
        print(f"{len(project.fixed)} of {len(project.columns())} columns do not depend on the run", flush=True)
        for number in args.only or range(args.trials):
            turn, place = divmod(number, len(kinds))
            kind, began = kinds[place], time.monotonic()
            what, wrong, draw = "", list[str](), random.Random(f"{args.seed} {number} {kind}")
            for _ in range(3):
                try:
                    what, wrong = trial(project, kind, turn * kinds.count(kind) + kinds[:place].count(kind), draw)
                    end = "did not hold" if wrong else "survived"
                    break
                except NotDone as why:
                    end = str(why)
            label = f"file: {re.split('[/ ]', what.removeprefix('results/local/'))[0]}" if kind == "file" else kind
            ends.setdefault(label, Counter())[end] += 1
            print(f"{number} {kind} ({what}): {end}, {time.monotonic() - began:.0f} s", *wrong, sep="\n  ", flush=True)
        project.restore()
    heads = ["survived", "did not hold", "missed", "not here"]
    ends["all"] = sum(ends.values(), Counter())
    rows = [[kind, *(of[head] for head in heads)] for kind, of in ends.items()]
    print(tabulate(rows, ["kind", *heads], tablefmt="pipe"))
    return int(any(of["did not hold"] for of in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
