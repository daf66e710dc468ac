"""A copy of the project in a temporary folder, with experiments of the test's own, to run the real workflow in."""

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perfscribe.config.keys import PRESETS
from perfscribe.plan import cache

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "Snakefile",
    "config.yaml",
    "rules",
    "workflow",
    "perfscribe",
    "references",
    "chapters",
    "slurm",
    "pbs",
    "run",
    # What is found in the sources, by their texts; a checkout has it after its first plan, `./run test` after its lint.
    str(cache.CODE),
)

PRESENT = '''"""Table of a test's experiment."""
from perfscribe.show import tables as t

TABLES = ("cs336.{name}",)
FIGURES = ()


def tables(records):
    cells = records["{name}"]
    columns = [t.factor(factor, factor) for factor in cells[0].factors]
    return [t.make(TABLES[0], "{name}", cells, [*columns, t.median("time_ms", "Time (ms)"), t.count("time_ms")])]

'''

CHEAP = '''"""Cells that cost nothing."""
from perfscribe.base.cells import Cell, Measurement


def cells(config):
    return [Cell({"n": n}) for n in config["n"]]


def run(cell):
    return Measurement(samples={"time_ms": [1.0, 2.0]}, timers={"time_ms": "host clock"})
'''

LEVELS = '''"""Keys of a test's experiment, its cells, which stand in its measure.py, and what it shows."""
from perfscribe.base.registry import Shown
from perfscribe.config.keys import experiment
from perfscribe.experiments.cs336.{name} import measure

cells, datasets = measure.cells, getattr(measure, "datasets", lambda config: {{}})

LEVELS = experiment("an experiment of a test", **{own!r})
SHOWN = Shown(**{shown!r})
'''

# Makes dry runs in processes forked from one that has imported Snakemake, which is most of a dry run's time. It imports
# nothing of Perfscribe: each reads the project tree that it is asked about, whose folder is where modules are looked
# for first, as `python -m snakemake` has it. What the Snakefile and Snakemake's own calls load on the way is there too.
SERVER = """
import gc, json, os, sys
import snakemake.cli
import jsonschema, numpy, psutil, smart_open, yaml
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
said = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for number in (1, 2):
    os.dup2(said, number)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.clear()
os.environ.update(order["environment"])
os.chdir(order["root"])
sys.path[0] = order["root"]
sys.argv[:] = ["snakemake", "--dry-run", "--cores", "1", "--nocolor", *order["arguments"]]
snakemake.cli.main()
"""


@functools.cache
def dry_runner() -> subprocess.Popen[str]:
    """The process that makes dry runs; it ends with this one."""
    variables, pipe = {**os.environ, "PYTHONPATH": ""}, subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SERVER], env=variables, stdin=pipe, stdout=pipe, text=True)


def shown_by(present: str) -> dict[str, tuple[str, ...]]:
    """Tables, figures, files and reads that a test's show.py names, for levels.py."""
    found = re.findall(r"^(TABLES|FIGURES|FILES|READS) = (.*)$", present, re.MULTILINE)
    return {name.lower(): ast.literal_eval(value) for name, value in found}


class Workspace:
    """A project tree of its own, without results."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name)  # with the compiled files: their sources keep time stamps
            elif source.is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, root / name)

    def only(self, *experiments: str) -> None:
        """Take away all experiments but these, and what config.yaml says of any.

        Without experiments of the project the report has one problem, as to write all takes a second a run.
        """
        config = self.root / "config.yaml"
        text = config.read_text().partition("\nexperiments:")[0] + "\n"
        config.write_text(text if experiments else re.sub(r"(?m)^chapters: \[.*\]", "chapters: [polaris]", text))
        if not experiments:
            self.shorten("polaris/alcf", "single_gpu")
        for folder in (self.root / "perfscribe" / "experiments").glob("*/*/"):
            if folder.name not in experiments:
                shutil.rmtree(folder)

    def shorten(self, index: str, problem: str) -> None:
        """Leave one problem in a chapter: most of a report's time goes into compiling the problems' texts."""
        path = self.root / "chapters" / f"{index}.yaml"
        head, found, problems = path.read_text().partition("\nproblems:\n")
        (kept,) = re.findall(rf"(?m)^  {problem}:.*\n(?:   .*\n)*", problems)
        path.write_text(f"{head}{found}{kept}")

    def add_experiment(self, name: str, measure: str, present: str = "", **section: object) -> None:
        """An experiment from the text of its measure.py; section: its own keys, plain values or lists of levels."""
        folder = self.root / "perfscribe" / "experiments" / "cs336" / name
        folder.mkdir()
        (folder / "__init__.py").write_text(f'"""{name}."""\n')
        (folder / "measure.py").write_text(measure)
        present = present or PRESENT.format(name=name)
        (folder / "show.py").write_text(present)
        own = {key: _property(value) for key, value in section.items()}
        (folder / "levels.py").write_text(LEVELS.format(name=name, own=own, shown=shown_by(present)))

    def set_config(self, text: str) -> None:
        """Replace config.yaml."""
        (self.root / "config.yaml").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        """The command line of one of the project's verbs."""
        return [sys.executable, "-m", "perfscribe.cli", *arguments]

    def environment(self) -> dict[str, str]:
        """Variables for it: nothing of the caller's Python path."""
        return {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PERFSCRIBE_COMMIT": "0" * 40}

    def run(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def succeed(self, *arguments: str, timeout_s: float = 240) -> str:
        """Run a verb that is to end well; what it printed."""
        done = self.run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def planned_jobs(self, *arguments: str) -> set[str]:
        """Jobs that a dry run would start: `measure attention 0`, `present_attention`, `write_report`, ..."""
        runner = dry_runner()
        assert runner.stdin and runner.stdout
        with tempfile.NamedTemporaryFile() as output:
            order = {"root": str(self.root), "environment": self.environment(), "arguments": arguments}
            runner.stdin.write(json.dumps({**order, "output": output.name}) + "\n")
            runner.stdin.flush()
            code, said = int(runner.stdout.readline()), output.read().decode()
        assert code == 0, said
        jobs = set()
        for line in said.splitlines():
            if found := re.match(r"(?:local)?rule (\w+):", line):
                jobs.add(found[1])
            elif found := re.match(r"Job \d+: measure (\w+), shard (\d+)", line):
                jobs.add(f"measure {found[1]} {found[2]}")
            elif found := re.match(r"Job \d+: make data set (\w+)", line):
                jobs.add(f"generate_{found[1]}")
        return jobs - {"report"}

    def rows(self, experiment: str, site: str = "local") -> list[dict]:
        """The experiment's records."""
        folder = self.root / "results" / site / "records" / experiment
        return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]

    def report(self, site: str = "local") -> str:
        """All pages of the report, one after the other."""
        return "\n".join(path.read_text() for path in sorted((self.root / "report" / site).rglob("*.md")))


def _property(value: object) -> dict[str, object]:
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}[type(value)]
    default = {preset: value for preset in PRESETS}
    return {"type": kind, "description": "a test's own", "x-expected": kind, "x-default": default}
