"""docs/reruns.md, edit by edit: the jobs of a dry run in a copy of the project are those of the document's table."""

import ast
import copy
import os
import random
import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from workspace import ROOT, Workspace

from perfscribe import config
from perfscribe.base import files
from perfscribe.plan import cache, fingerprint, plan

SITE = "local"
RESULTS, SHOWN = f"results/{SITE}", f"report/{SITE}"
EAGER = "perfscribe/attention/eager.py"
ATTENTION = "perfscribe/experiments/cs336/attention"

# Few and small cells. What is left out here runs in the same way.
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "experiments": {
        "attention": {"seq_len": [16, 32], "head_dim": [8]},
        # Files above the 1 MB that Snakemake itself compares by content.
        "io_formats": {"format": ["memory", "npy"], "cache": ["warm"], "features": 512},
    },
}
# Chapters with the problem that stays in each where reports are really written.
SHORTENED = {"cs336/2025": "pytorch_attention", "polaris/alcf": "io_formats", "fsdp/kaust": "baseline"}


# Patterns of job names by edit, as the document's table has them: edit, example, jobs.
ROWS = re.findall(r"(?m)^\| *(.+?) *\|.*\| *(`.*`|nothing) *\|$", (ROOT / "docs" / "reruns.md").read_text("utf-8"))
TABLE = {edit: tuple(re.findall("`([^`]+)`", jobs)) for edit, jobs in ROWS}


def expand(patterns: tuple[str, ...], jobs: set[str]) -> set[str]:
    """The jobs that the patterns stand for."""
    if "write_report" in patterns:
        patterns = (*patterns, "write_html")  # which follows it always, as the document says above the table
    return {job for job in jobs if any(fnmatch(job, pattern) for pattern in patterns)}


# Edits, each of a project tree


def in_text(path: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """An edit of one file's text, which must change it."""

    def edit(root: Path) -> None:
        before = (root / path).read_text(encoding="utf-8")
        after = change(before)
        assert after != before, f"{path} is as it was"
        (root / path).write_text(after, encoding="utf-8")

    return edit


def insert(path: str, function: str, line: str) -> Callable[[Path], None]:
    """A line at the begin of a top-level function."""
    return in_text(path, lambda text: re.sub(rf"(?m)^(def {function}\(.*:)$", rf"\1\n    {line}", text))


def append(path: str, text: str = "EDITED = True") -> Callable[[Path], None]:
    """A line at the end of a file."""
    return in_text(path, lambda before: f"{before}{text}\n")


def reformat(text: str) -> str:
    """Another layout: no comments, other quotes and line breaks, parentheses around values."""
    return "\n\n".join(ast.unparse(node) for node in ast.parse(text).body) + "\n"


def in_config(*path: str, to: Any) -> Callable[[Path], None]:
    """Another value of a config key."""

    def change(text: str) -> str:
        settings = yaml.safe_load(text)
        section = settings
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = to
        return yaml.safe_dump(settings)

    return in_text("config.yaml", change)


def delete(pattern: str) -> Callable[[Path], None]:
    """A generated file is lost."""

    def edit(root: Path) -> None:
        (path,) = root.glob(pattern)
        path.unlink()

    return edit


def write_note(root: Path) -> None:
    """A note where there was none."""
    path = root / "report" / "notes" / SITE / "cs336.md"
    path.parent.mkdir(parents=True)
    path.write_text("Measured on a Monday.\n")


def touch_data(root: Path) -> None:
    """New time stamps of all data files."""
    found = [path for path in (root / RESULTS / "data").rglob("*") if path.is_file() and path.suffix != ".digest"]
    assert max(path.stat().st_size for path in found) > 10**6
    for path in found:
        path.touch()


def touch_sources(root: Path) -> None:
    """New time stamps of everything that is not generated."""
    generated = tuple(str(root / folder) for folder in (RESULTS, SHOWN, ".snakemake", ".perfscribe", "logs"))
    for path in root.rglob("*"):
        if path.is_file() and not str(path).startswith(generated):
            path.touch()


def together(*edits: Callable[[Path], None]) -> Callable[[Path], None]:
    """Several edits, one after the other."""
    return lambda root: [edit(root) for edit in edits] and None


def move_module(root: Path) -> None:
    """The kernel's module in another package, and every import after it."""
    (root / EAGER).rename(root / "perfscribe" / "plain_attention.py")
    for path in (root / "perfscribe").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for old, new in (
            ("from perfscribe.attention import eager", "from perfscribe import plain_attention as eager"),
            ("perfscribe.attention.eager", "perfscribe.plain_attention"),
        ):
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


COST = "a cost, which orders cells and estimates their time"
EDITS: dict[str, Callable[[Path], None]] = {
    "a comment in a kernel module": append(EAGER, "# a comment"),
    "a docstring": in_text(EAGER, lambda text: re.sub(r'"""(?=\w)', '"""Other words.\n\n    ', text)),
    "a reformatting": in_text(EAGER, reformat),
    "a module moved and renamed": move_module,
    "new time stamps of all sources": touch_sources,
    "the kernel": append(EAGER),
    "how an experiment measures": insert(f"{ATTENTION}/measure.py", "run", "assert True"),
    "how cells are listed, the cells being the same": insert(f"{ATTENTION}/levels.py", "cells", "assert True"),
    COST: in_text(f"{ATTENTION}/levels.py", lambda text: text.replace("cost=_cost(", "cost=2 * _cost(")),
    "a table function": insert(f"{ATTENTION}/show.py", "tables", "assert True"),
    "statistics": append("perfscribe/instruments/statistics.py"),
    "the report's own parts": append("perfscribe/report/report.py"),
    "how the HTML is made": append("perfscribe/report/html.py"),
    "the HTML's template or style": in_text("perfscribe/report/report.css", lambda text: f"{text}p {{ margin: 0 }}\n"),
    "the line under every figure": append("perfscribe/show/provenance.py"),
    "the engine: worker, journal, command line": together(
        *(
            append(f"perfscribe/{name}.py")
            for name in ("run/worker", "records/journal", "cli", "run/child", "records/machine", "run/progress")
        )
    ),
    "the arrays of a data set": append("perfscribe/data/synthetic.py"),
    "the token batches": append("perfscribe/data/tokens.py"),
    "the tokenised questions": append("perfscribe/data/squad_tokenised.py"),
    "a sentence of a chapter": append("chapters/cs336/pytorch_attention.md", "\nA sentence."),
    "a reason's condition": in_text(
        "chapters/cs336/pytorch_attention.md", lambda text: text.replace("part >= 50", "part >= 60")
    ),
    "the text on method": append("chapters/appendix.md", "A sentence."),
    "a note": write_note,
    "a published figure": in_text("references/attention.csv", lambda text: text[: text.rstrip().rindex("\n") + 1]),
    "a comment in the config": in_text("config.yaml", lambda text: f"# a comment\n{text}"),
    "what jobs ask a cluster for": in_config("cluster", "partition", to="other"),
    "how cells are run": together(
        in_config("experiments", "attention", "timeout_s", to=599),
        in_config("experiments", "attention", "isolation", to="cell"),
    ),
    "how many jobs run at the same time": in_config("share_machine", to=False),
    "a key of one experiment": in_config("experiments", "io_formats", "read_samples", to=9),
    "one more level of a factor": in_config("experiments", "attention", "seq_len", to=[16, 24, 32]),
    "the seed": in_config("seed", to=1),
    "the time budget": in_config("budget_minutes", to=60),
    "a chapter taken out": in_config("chapters", to=["polaris"]),
    "a table deleted": delete(f"{RESULTS}/tables/cs336.pytorch_attention.csv"),
    "a figure deleted": delete(f"{SHOWN}/figures/cs336.attention_by_length.svg"),
    "captions deleted": delete(f"{RESULTS}/tables/attention.figures.json"),
    "records deleted": delete(f"{RESULTS}/records/attention/0.jsonl"),
    "the report deleted": delete(f"{SHOWN}/report.md"),
    "the HTML deleted": delete(f"{SHOWN}/report.html"),
    "a data file touched, its content the same": touch_data,
    "a data file deleted": delete(f"{RESULTS}/data/*/npy/target.npy"),
    "a data file deleted and its experiment edited": together(
        delete(f"{RESULTS}/data/*/npy/target.npy"), in_config("experiments", "io_formats", "read_samples", to=9)
    ),
}


# What the plan files do not show: time stamps and lost files.
LOST = [edit for edit in EDITS if re.search("delete|data file|time stamps|chapter taken", edit)]
# Tried in a fresh clone, which lacks what Snakemake keeps of earlier runs: an edit of each kind.
CLONED = ("a docstring", "the kernel", "the arrays of a data set", "a table deleted", "a data file deleted")


# The workflow


def duplicate(workspace: Workspace, root: Path) -> Workspace:
    """A copy with the time stamps of the original."""
    shutil.copytree(workspace.root, root, symlinks=True)
    other = copy.copy(workspace)
    other.root = root
    return other


def jobs_of(workspace: Workspace) -> set[str]:
    """Jobs of a dry run, shards of an experiment taken together."""
    return {re.sub(r"^(measure \w+) \d+$", r"\1", job) for job in workspace.planned_jobs()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A project whose report is written, and the names of all its jobs."""
    workspace = Workspace(tmp_path_factory.mktemp("reruns") / "project")
    workspace.only(*SETTINGS["experiments"])
    for index, problem in SHORTENED.items():
        workspace.shorten(index, problem)
    workspace.set_config(yaml.safe_dump(SETTINGS))
    every_job = jobs_of(workspace)
    workspace.succeed("report")
    return workspace, every_job


@pytest.fixture(scope="module")
def places(measured, tmp_path_factory):
    """Projects to edit: the measured one, and a fresh clone into which only results were copied."""
    workspace, _ = measured
    clone = duplicate(workspace, tmp_path_factory.mktemp("clone") / "project")
    for name in (".snakemake", ".perfscribe", "logs"):
        shutil.rmtree(clone.root / name)
    touch_sources(clone.root)
    assert jobs_of(clone) == set(), "which keeps what makes those below quicker, by the texts of the sources"
    shutil.rmtree(clone.root / ".snakemake")
    return {"here": workspace, "in a fresh clone": clone}


def test_every_row_is_tried_and_every_edit_is_in_the_table():
    assert list(TABLE) == list(EDITS)


def test_without_an_edit_nothing_runs(places, tmp_path):
    for number, place in enumerate(places.values()):
        assert jobs_of(duplicate(place, tmp_path / str(number))) == set()


@pytest.mark.parametrize(
    ("place", "edit"), [*(("here", edit) for edit in LOST), *(("in a fresh clone", edit) for edit in CLONED)]
)
def test_edit_reruns_what_the_table_says(measured, places, tmp_path, place, edit):
    _, every_job = measured
    workspace = duplicate(places[place], tmp_path / "project")
    EDITS[edit](workspace.root)
    own = [pattern for pattern in TABLE[edit] if pattern not in ("write_report", "write_html", "verdict")]
    of_others = own and not expand(own, every_job)  # what this copy does not measure
    assert jobs_of(workspace) == (set() if of_others else expand(TABLE[edit], every_job))


# The table for the whole project, of which the copies hold a part: by the plan files that an edit changes


def planned_units(root: Path) -> plan.Plan:
    """The plan of a project tree as its config.yaml has it."""
    raw = config.load(root / "config.yaml")
    config.check(raw)
    return plan.build(raw, raw["preset"], root, code=fingerprint.Sources(root, cache.of_code(root).recall))


def jobs_behind(made: plan.Plan, units: set[str]) -> set[str]:
    """Jobs that read the plan files of these names, and all that follow from them."""
    data = {unit.removeprefix("data-") for unit in units if unit.startswith("data-")}
    measuring = {unit.split("-")[1] for unit in units if unit.startswith("measure-")}
    measuring |= {name for name, wanted in made.experiment_datasets.items() if data & set(wanted)}
    presented = {unit.removeprefix("present-") for unit in units if unit.startswith("present-")}
    presented |= {name for name, shown in made.presentations.items() if measuring & {name, *shown.reads}}
    jobs = {f"generate_{name}" for name in data} | {f"measure {name}" for name in measuring}
    page = {"write_html"} if units else set()
    written = {"write_report", "verdict"} if units - {"page"} else set()
    return jobs | {f"present_{name}" for name in presented} | written | page


@pytest.fixture(scope="module")
def whole_project(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("whole") / "project")
    workspace.set_config(yaml.safe_dump(SETTINGS))
    return workspace, planned_units(workspace.root)


# Cells are those of the levels that this process has imported, so an edited cost has no effect here.
@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit not in (*LOST, COST)])
def test_the_table_holds_for_every_experiment(whole_project, tmp_path, edit):
    workspace, before = whole_project
    root = duplicate(workspace, tmp_path / "project").root
    EDITS[edit](root)
    after = planned_units(root)
    changed = {name for name, unit in after.units.items() if unit != before.units.get(name)}
    assert jobs_behind(after, changed) == expand(TABLE[edit], jobs_behind(before, set(before.units)))


# What runs in truth


def cells_measured(workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
    """Factors of the cells that ran, from the journals, by experiment."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in (workspace.root / RESULTS / "journal").rglob("*.jsonl"):
        records = [event for event in files.read_json_lines(path) if event["event"] == "record"]
        found[path.parent.name] = [record["factors"] for record in records if record["status"] != "unsupported"]
    return found


def test_edit_taken_back_and_lost_files_measure_nothing(places, tmp_path):
    here = duplicate(places["here"], tmp_path / "here")
    clone = duplicate(places["in a fresh clone"], tmp_path / "clone")
    kept = (clone.root / EAGER).read_text()
    for workspace in (here, clone):
        EDITS["the kernel"](workspace.root)
        assert "measure attention" in jobs_of(workspace)
        (workspace.root / EAGER).write_text(kept)
        assert jobs_of(workspace) == set(), "a dry run leaves the plan files as they were"

    # Time stamps in any order, as after a copy that does not keep them.
    generated = [path for folder in (RESULTS, SHOWN) for path in (clone.root / folder).rglob("*") if path.is_file()]
    now = max(path.stat().st_mtime for path in generated)
    for path in generated:
        moment = now - random.Random(path.name).uniform(0, 60)
        os.utime(path, (moment, moment))
    EDITS["records deleted"](clone.root)
    before, rows = cells_measured(clone), here.rows("attention")
    clone.succeed("report")
    assert cells_measured(clone) == before and all(before.values())
    assert clone.rows("attention") == rows
    assert jobs_of(clone) == set()


def test_one_more_length_measures_its_own_cells_alone_though_their_cost_was_edited(places, tmp_path):
    workspace = duplicate(places["here"], tmp_path / "project")
    before = cells_measured(workspace)
    for edit in (COST, "one more level of a factor"):
        EDITS[edit](workspace.root)
    workspace.succeed("report")
    after = cells_measured(workspace)
    added = after["attention"][len(before["attention"]) :]
    assert [(factors["seq_len"], factors["head_dim"]) for factors in added] == [(24, 8)]
    assert {**after, "attention": before["attention"]} == before
    ok = [row["factors"]["seq_len"] for row in workspace.rows("attention") if row["status"] == "ok"]
    assert sorted(ok) == [16, 24, 32]
