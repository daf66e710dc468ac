"""Seeded faults: what a report meets, and what the next `./run report` makes of it.

bench/faults.py [--trials 300] [--seed 0] [--kind NAME ...] [--only N] [--light] [--out FILE.md]

Each trial begins with a finished tiny report in a scratch copy of this checkout, meets one fault, and lets the next run
finish. It holds where

- the next run ends well without help; where a cell failed or a folder's name cannot be, a line says so and how to mend
  it, and that mends it; the run after it has nothing to do,
- the columns that three undisturbed runs agree in, in every row, are the same,
- no finished cell is measured twice, but for those whose line of the journal, or whose data set, was damaged,
- no process is left.

Seed and number fix a trial (--only N with the same kinds), apart from how fast the machine is. Every second one damages
a file: each file below results/ and .perfscribe/ in turn. Disk full and read-only are mounts in a namespace of the
trial's own; where those are not allowed, it says `not here`. --light leaves a real experiment out, for the tests.
Exit status 1: one did not hold.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# Scratch copies would compile torch anew, into what each trial copies.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import sessions  # noqa: E402
from workspace import Workspace  # noqa: E402

from perfscribe.records import journal  # noqa: E402

LIMIT_S, END_S = 300, 20
SITE = Path("results/local")
MADE = ("results", "report/local", ".perfscribe", ".snakemake", "logs")
# What a file is, for the table; the first pattern that fits.
FILES = {
    "journal": "results/local/journal/*/*",
    "records": "results/local/records/*/*",
    "plan": "results/local/plan/*",
    "environment": "results/local/environments/*",
    "data": "results/local/data/*/*",
    "digest of data": "results/local/data/*",
    "table": "results/local/tables/*.csv",
    "description of a table": "results/local/tables/*.json",
    "checksums": "results/local/checksums/*",
    "summary or verdict": "results/local/[sv]*",
    "run lock": ".perfscribe/run.lock",
    "marks and caches": ".perfscribe/*",
}
DAMAGES = ("removed", "truncated", "flipped", "emptied")
# Cells on two ranks. A file `hang` in the root names a cell, a rank and how it is lost to the others.
MEASURE = '''"""Cells of bench/faults.py."""
import os
import signal
import time

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data.layout import file_names
from perfscribe.distributed import needs

PRELOADED = needs.BASE
FORMATS = ["npy", "hdf5"]
SHAPE = {"samples": 16, "source_length": 1, "target_length": 4, "features": 8}


def datasets(config):
    return {"probe": {"parameters": {**SHAPE, "seed": 0}, "formats": FORMATS, "files": file_names(FORMATS)}}


def cells(config):
    return [Cell({"n": n}, cost=n, data=("probe",)) for n in config["n"]]


def run(cell):
    from perfscribe.distributed import launch

    began = time.perf_counter()
    arguments = {"n": cell["n"], "file": os.path.join(cell.data_folder, "probe", "npy", "source.npy")}
    sums = launch.waiting(on_rank, timeout_s=500, world_size=2).ask(arguments, 500)
    elapsed_ms = 1e3 * (time.perf_counter() - began)
    return Measurement({"time_ms": [elapsed_ms]}, timers={"time_ms": "host clock"}, values={"sum": sums[0]})


def on_rank(arguments, rank):
    import numpy
    import torch

    if os.path.exists("hang"):
        cell, lost, how = open("hang").read().split()
        if (int(cell), int(lost)) == (arguments["n"], rank.place.rank):
            os.kill(os.getpid(), signal.SIGSTOP) if how == "stopped" else time.sleep(1000)
    time.sleep(0.2)
    total = torch.tensor(numpy.load(arguments["file"]).sum() * (arguments["n"] + rank.place.rank))
    torch.distributed.all_reduce(total)
    return float(total)
'''
SHOW = '''"""Their table."""
from perfscribe.show import tables as t

TABLES = ("cs336.probe",)


def tables(records):
    columns = [t.factor("n", "n"), t.value("sum", "Sum"), t.median("time_ms", "Time (ms)")]
    return [t.make(TABLES[0], "probe", records["probe"], columns)]
'''
CELLS, REAL = 5, "io_formats"
OF_LOAD = ("flags",)  # columns of what the machine did beside, which three runs need not have met
MEASURING, SERVER = "workflow/scripts/measure.py", "perfscribe.distributed.fork_server"
# Of the processes whose command line holds the word, the first below another program, the next below that one, ...
ROLES = {
    "perfscribe.cli": ("parent",),
    "perfscribe.run.engine": ("engine",),
    MEASURING: ("supervisor", "worker"),
    "perfscribe.run.child": ("child",),
    SERVER: ("server", "agent", "rank"),
    **{f"workflow/scripts/{name}.py": ("drawing",) for name in ("present", "report", "write_html", "verdict")},
}
# Arguments: the folder, another one for what it holds, bytes, the command. What a mount hides is back at the end.
FULL = """mount --bind "$1" "$2" && mount -t tmpfs -o "size=$3" none "$1" && cp -a "$2"/. "$1"/ || exit 99
"${@:4}"; code=$?
find "$2" -mindepth 1 -delete; cp -a "$1"/. "$2"/; exit $code"""
READ_ONLY = """mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99
"${@:4}"; exit $?"""
REFUSED = 99

Outcome = tuple[str, list[str]]  # what was done, and what did not hold
Slot = tuple[str, int]  # key of a cell, round


class Missed(Exception):
    """The run ended before the fault could be made."""


class NotHere(Exception):
    """This machine does not allow the fault."""


class Project(Workspace):
    """A scratch copy of the checkout, and the finished report that each trial begins with."""

    def __init__(self, folder: Path, light: bool) -> None:
        super().__init__(folder / "project")
        self.folder, self.home, self.said = folder, self.root, ""
        self.only(*([] if light else [REAL]))
        self.add_experiment("probe", MEASURE, SHOW, n=list(range(CELLS)))
        if not light:
            with open(self.root / "config.yaml", "a", encoding="utf-8") as stream:
                stream.write(f"experiments: {{{REAL}: {{format: [memory, npy, hdf5]}}}}\n")
        tables = []
        for _ in range(3):
            self.forget("results", "report/local")
            began = time.monotonic()
            if self.finish():
                sys.exit(self.said)
            self.seconds = time.monotonic() - began
            tables.append(self.columns())
        self.fixed = {name for name, rows in tables[0].items() if all(one.get(name) == rows for one in tables)}
        self.expected, self.slots = tables[0], set(self.journal()[0])
        for name in MADE:
            shutil.copytree(self.root / name, folder / "kept" / name, symlinks=True)
        places = (path.relative_to(self.root) for name in ("results", ".perfscribe") for path in self.below(name))
        self.files = sorted(path for path in places if "bytecode" not in path.parts)

    def below(self, name: str) -> list[Path]:
        """The files of a folder."""
        return [path for path in (self.root / name).rglob("*") if path.is_file()]

    def forget(self, *names: str) -> None:
        """Remove these."""
        for name in names:
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def restore(self) -> None:
        """Go back to the finished report, in a folder of a plain name."""
        if self.root != self.home:
            self.root.rename(self.home)
            self.root = self.home
        self.forget(*MADE, "hang")
        for name in MADE:
            shutil.copytree(self.folder / "kept" / name, self.root / name, symlinks=True)

    def begin(self, *words: str, before: Sequence[str] = (), log: str = "out.log") -> sessions.Process:
        """A report."""
        command = [*before, *self.command("report", "--config", "preset=tiny", *words)]
        return sessions.Process(command, self.root, self.environment(), self.folder / log)

    def end(self, run: sessions.Process) -> int | str:
        """Exit status of a run and of all that it started; what it printed is in `said`."""
        code: int | str
        try:
            code = run.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = "hang"
        except AssertionError:
            code = "its processes go on"
            run.kill_all()
        self.said = run.log()
        return code

    def finish(self, *words: str, before: Sequence[str] = ()) -> int | str:
        """A report to its end."""
        return self.end(self.begin(*words, before=before))

    def columns(self) -> dict[tuple[str, str], list[str]]:
        """Every column of every table."""
        found = {}
        for path in sorted((self.root / SITE / "tables").glob("*.csv")):
            with open(path, newline="", encoding="utf-8") as stream:
                heads, *rows = csv.reader(stream)
            found |= {
                (path.name, head): list(cells) for head, *cells in zip(heads, *rows, strict=True) if head not in OF_LOAD
            }
        return found

    def journal(self) -> tuple[dict[Slot, list[str]], list[Slot]]:
        """Ids of the sound records by slot, and slots that were started though they had a record."""
        records: dict[Slot, list[str]] = {}
        again = []
        for path in sorted((self.root / SITE / "journal").glob("*/*.jsonl")):
            for line in path.read_bytes().split(b"\n"):
                with suppress(ValueError):
                    event = journal.parse(line)
                    if event["event"] == "retired":
                        records = {slot: ids for slot, ids in records.items() if not set(ids) & set(event["ids"])}
                    slot = (event.get("key", ""), event.get("round", 0))
                    if event["event"] == "record":
                        records.setdefault(slot, []).append(event["id"])
                    elif event["event"] == "started" and slot in records:
                        again.append(slot)
        return records, again

    def lines(self) -> int:
        """Events that the journal of the probe holds."""
        return len(sessions.text_of(self.root / SITE / "journal/probe/0.jsonl").splitlines())

    def orphans(self) -> list[str]:
        """Processes that work in the scratch folder or have it in their environment."""
        mark, found = os.fsencode(self.folder), []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(place.name) != os.getpid() and (
                    mark in os.fsencode(os.readlink(place / "cwd")) or mark in (place / "environ").read_bytes()
                ):
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120])
        return found


def role(process: psutil.Process) -> str:
    """What a process is to a run; empty for any other."""
    words = process.cmdline()
    name = next((name for name in ROLES if name in words), "")
    depth = sum(name in parent.cmdline() for parent in process.parents()) if name else 0
    return ROLES[name][depth] if name and depth < len(ROLES[name]) else ""


def the(project: Project, run: sessions.Process, wanted: str) -> psutil.Process:
    """The first process of this role, which may have to begin first."""
    while run.alive():
        for process in run.members():
            with suppress(psutil.Error):
                if role(process) == wanted:
                    return process
        time.sleep(0.01)
    raise Missed(wanted)


def begun(project: Project, draw: random.Random, latest: float = 1.0) -> tuple[sessions.Process, str]:
    """A run with cells to measure, after as many lines of the journal or seconds as drawn."""
    lost = draw.choice(
        [("results/local/journal/probe", "results/local/records/probe")] * 3 + [("results", "report/local")]
    )
    project.forget(*lost)
    run = project.begin()
    lines, delay_s = draw.randrange(int(2 * CELLS * latest) + 1), draw.random() * 0.4
    if draw.random() < 0.4:
        lines, delay_s = 0, draw.random() * project.seconds * latest
    while run.alive() and project.lines() < lines:
        time.sleep(0.01)
    time.sleep(delay_s)
    return (
        run,
        f"without {lost[0]}, after {lines} lines and {delay_s:.2f} s",
    )


def stop(project: Project, draw: random.Random, number: signal.Signals) -> Outcome:
    """A signal to what the user started, perhaps twice."""
    run, moment = begun(project, draw)
    twice = draw.random() < 0.3
    for _ in range(1 + twice):
        if not run.alive():
            break
        os.kill(run.pid, number)
        time.sleep(draw.random() if twice else 0)
    code = project.end(run)
    if code == 0:
        raise Missed("it had ended")
    expected = -number if number == signal.SIGHUP else 128 + number
    return f"{moment}{', twice' if twice else ''}", [] if code == expected else [f"exit status {code}"]


def kill(project: Project, draw: random.Random, wanted: str) -> Outcome:
    """kill -9."""
    run, moment = begun(project, draw, 1.0 if wanted in ("parent", "engine", "all", "drawing") else 0.5)
    if not run.alive():
        raise Missed("it had ended")
    if wanted == "all":
        run.kill_tree()
    else:
        victim = the(project, run, wanted)
        victim.kill()
    code = project.end(run)
    return moment, [f"exit status {code}"] if isinstance(code, str) else []


def mounted(project: Project, draw: random.Random, script: str, refusal: str) -> Outcome:
    """A mount over a folder of the project; it is full from some page on, or takes no file at all."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise NotHere("unshare -m")
    name = draw.choice(["results", "report/local", ".perfscribe", ".snakemake", "logs", "results/local/journal/probe"])
    if draw.random() < 0.7 or name.endswith("probe"):
        project.forget("results/local/records/probe")
        for path in project.below("results/local/journal/probe"):
            path.write_bytes(b"")
    else:
        project.forget("results/local", "report/local")
        (project.root / name).mkdir(parents=True, exist_ok=True)
    beside = project.folder / "beside"
    beside.mkdir(exist_ok=True)
    pages = sum(-(-path.stat().st_size // 4096) for path in project.below(name)) + draw.randrange(1, 12)
    begin = ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "mounted"]
    code = project.finish(before=[*begin, str(project.root / name), str(beside), str(4096 * pages)])
    if code == REFUSED:
        raise NotHere("mount")
    told = code == 0 or refusal in project.said
    return f"{name}, {pages} pages: exit status {code}", ([] if told else [f"exit status {code}, and no `{refusal}`"])


def hang(project: Project, draw: random.Random) -> Outcome:
    """A rank that does not come to its collective: the cell times out, and the run goes on."""
    cell, how = draw.randrange(1, CELLS), draw.choice(["stopped", "asleep"])
    project.forget("results/local/journal/probe", "results/local/records/probe")
    (project.root / "hang").write_text(f"{cell} {draw.randrange(2)} {how}")
    code = project.finish("experiments={probe: {timeout_s: 8}}")
    wrong = (
        []
        if code == 0 and f"probe n={cell}: timeout longer" in project.said
        else [f"exit status {code}, and no time-out"]
    )
    (project.root / "hang").unlink()
    return f"cell {cell}, {how}", wrong


def two_runs(project: Project, draw: random.Random) -> Outcome:
    """A second run beside the first: one of them says whose the other is."""
    first, moment = begun(project, draw)
    second = project.begin(log="second.log")
    ends = []
    for run in (second, first):
        code = project.end(run)
        refused = code == 1 and project.said.startswith("run: another run is under way in this checkout: process ")
        ends.append("refused" if refused and project.said.count("\n") == 1 else str(code))
    return f"{moment}: {ends}", [] if "0" in ends and set(ends) <= {"0", "refused"} else [f"ended as {ends}"]


def odd_name(project: Project, draw: random.Random) -> Outcome:
    """A folder of another name, where everything is measured; what cannot be is refused in a line."""
    pieces = draw.sample([" ", "'", '"', "{", "}", "{n}", "\n", "$HOME", "ü", "%s", "#", "\\", "*", ";", "&"], 2)
    odd = project.folder / f"a{pieces[0]}b{pieces[1]}"
    project.forget("results/local", "report/local")
    project.root.rename(odd)
    project.root = odd
    code = project.finish()
    (line, *more) = project.said.splitlines() or [""]
    if not code:
        return repr(odd.name), check(project)
    named = "give the folder another name" in line and not more
    project.root = odd.rename(project.home)
    return f"{odd.name!r} refused", [] if code == 1 and named else [f"exit status {code}: {project.said!r}"]


def damage(project: Project, draw: random.Random, number: int) -> Outcome:
    """One file; each in turn, then each again by another damage."""
    order = random.Random("files").sample(project.files, len(project.files))
    place = order[number % len(order)]
    how = DAMAGES[(number // len(order) + number) % len(DAMAGES)]
    path = project.root / place
    content = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    elif how == "flipped" and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    else:
        path.write_bytes(content[: draw.randrange(len(content)) if how == "truncated" and content else 0])
    return f"{place} {how}", []


def check(project: Project, before: str = "", new_keys: bool = False) -> list[str]:
    """What does not hold after the next run, and after the one behind it.

    before: what was printed before. new_keys: a data set may have changed, and with it the keys of its cells.
    """
    kept = {one for ids in project.journal()[0].values() for one in ids}
    code, said = project.finish(), before + project.said
    wrong = [] if code == 0 else [f"the next run: exit status {code}"]
    for path in sorted((project.root / SITE / "records").glob("*/*.jsonl")):
        ends = {row["status"] for row in map(json.loads, path.read_text().splitlines())} - {"ok"}
        for status in sorted(ends & {"failed", "timeout"}):
            mend = ["remeasure", path.parent.name, f"status={status}"]
            if f"./run {' '.join(mend)}" not in said:
                wrong.append(f"nothing says ./run {' '.join(mend)}")
            wrong += [] if project.run(*mend).returncode == 0 and project.finish() == 0 else ["which does not mend it"]
            kept = {one for ids in project.journal()[0].values() for one in ids} & kept
    records, again = project.journal()
    wrong += [f"measured again: {len(again)} cells"] if again else []
    lost = kept - {one for ids in records.values() for one in ids}
    wrong += [f"{len(lost)} finished cells lost"] if lost else []
    wrong += ["other cells than planned"] if set(records) != project.slots and not new_keys else []
    now = project.columns()
    differing = [name for name in sorted(project.fixed) if now.get(name) != project.expected[name]]
    wrong += [f"{len(differing)} columns differ, first {differing[0]}"] if differing else []
    quiet = project.finish() == 0 and project.said.startswith("nothing to do")
    wrong += [] if quiet else [f"the run after: {project.said}"]
    return wrong + (["Traceback"] if "Traceback" in said else []) + ([said] if wrong else [])


def trial(project: Project, kind: str, number: int, draw: random.Random) -> tuple[str, str, list[str]]:
    """A label for the table, what was done, what did not hold."""
    label, wrong, project.said = kind, [], ""
    if kind == "file":
        what, _ = damage(project, draw, number)
        label = "file: " + next((name for name, form in FILES.items() if Path(what.split()[0]).match(form)), "other")
    else:
        what, wrong = KINDS[kind](project, draw)
        wrong += [project.said] if wrong else []
    deadline = time.monotonic() + END_S
    while (left := project.orphans()) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong += [f"left behind: {line}" for line in left] + check(project, project.said, "data" in label)
    return label, what, wrong + [f"left behind: {line}" for line in project.orphans()]


Kind = Callable[[Project, random.Random], Outcome]
KINDS: dict[str, Kind] = {
    **{f"kill {one}": lambda p, d, one=one: kill(p, d, one) for one in [*sum(ROLES.values(), ()), "all"]},
    **{name: lambda p, d, name=name: stop(p, d, signal.Signals[f"SIG{name}"]) for name in ("INT", "TERM", "HUP")},
    "disk full": lambda p, d: mounted(p, d, FULL, "No space left on device"),
    "read-only": lambda p, d: mounted(p, d, READ_ONLY, "Read-only file system"),
    "hung collective": hang,
    "two runs": two_runs,
    "folder name": odd_name,
}


def main() -> int:
    """Exit status 0, or 1 where a trial did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="*", choices=["file", *KINDS], default=[])
    parser.add_argument("--only", type=int, nargs="*", metavar="N")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kinds = args.kind or [kind for other in KINDS for kind in ("file", other)]
    tried: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        project = Project(Path(folder).resolve(), args.light)
        print(f"{len(project.fixed)} of {len(project.expected)} columns do not depend on the run", flush=True)
        for number in range(args.trials) if args.only is None else args.only:
            kind, began = kinds[number % len(kinds)], time.monotonic()
            file = number // len(kinds) * kinds.count("file") + kinds[: number % len(kinds)].count("file")
            label, what, wrong, end = kind, "", [], "survived"
            draw = random.Random(f"{args.seed} {number} {kind}")
            for _ in range(3):
                try:
                    project.restore()
                    label, what, wrong = trial(project, kind, file, draw)
                    end = "did not hold" if wrong else "survived"
                    break
                except Missed as why:
                    end, what = "missed", str(why)
                except NotHere as why:
                    end, what = "not here", str(why)
                    break
            tried.setdefault(label, Counter())[end] += 1
            print(
                f"{number} {label} ({what}): {end}, {time.monotonic() - began:.0f} s", *wrong, sep="\n    ", flush=True
            )
        project.restore()
    heads = ["survived", "did not hold", "missed", "not here"]
    rows = [[kind, *(ends[head] for head in heads)] for kind, ends in sorted(tried.items())]
    rows.append(["all", *(sum(ends[head] for ends in tried.values()) for head in heads)])
    text = tabulate(rows, ["kind", *heads], tablefmt="pipe")
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return int(any(ends["did not hold"] for ends in tried.values()))


if __name__ == "__main__":
    sys.exit(main())
