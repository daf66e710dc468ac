"""The worked example of docs/add-an-experiment.md, taken from the page and run in a copy of the project."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from workspace import ROOT, Workspace

PAGE = ROOT / "docs" / "add-an-experiment.md"
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = "copy_bandwidth"
TABLE = "polaris.copy_bandwidth"


@dataclass(frozen=True)
class Block:
    """A code block that the page tells its reader to put somewhere.

    how: file (a new one), append (at the end of a file), insert (before the only line that is `before`).
    """

    how: str
    path: str
    before: str
    text: str

    def apply(self, root: Path) -> None:
        """Do what the page says."""
        target = root / self.path
        if self.how == "file":
            target.parent.mkdir(parents=True, exist_ok=True)
            assert not target.exists(), f"{self.path} exists already"
            target.write_text(self.text)
            return
        content = target.read_text()
        if self.how == "append":
            target.write_text(content.rstrip("\n") + "\n" + self.text)
            return
        assert content.splitlines().count(self.before) == 1, f"{self.path}: one line {self.before!r} was expected"
        target.write_text(content.replace(f"\n{self.before}\n", f"\n{self.text}{self.before}\n"))


def blocks() -> list[Block]:
    """The page's blocks that name a place; those without one are commands."""
    found = []
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        words = dict(word.split("=", 1) for word in match["info"].split())
        for how in ("file", "append", "insert"):
            if how in words:
                found.append(Block(how, words[how], words.get("before", ""), match["text"]))
    return found


def commands() -> list[str]:
    """Lines of the page's shell blocks."""
    shell = [match["text"] for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")) if match["language"] == "bash"]
    return [line for text in shell for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy with the example and no other experiment, its report written."""
    workspace = Workspace(tmp_path_factory.mktemp("example"))
    workspace.only()
    for name in ("docs", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, workspace.root / name, dirs_exist_ok=True)
        else:
            shutil.copy2(source, workspace.root / name)
    for block in blocks():
        block.apply(workspace.root)
    done = workspace.run("report", "--config", "preset=tiny")
    assert done.returncode == 0, done.stdout
    return workspace


def test_page_says_where_each_block_belongs() -> None:
    assert [(block.how, block.path) for block in blocks()] == [
        ("file", f"perfscribe/experiments/{EXAMPLE}/__init__.py"),
        ("file", f"perfscribe/experiments/{EXAMPLE}/measure.py"),
        ("file", f"perfscribe/experiments/{EXAMPLE}/present.py"),
        ("insert", "workflow/schemas/config.schema.yaml"),
        ("append", "config.yaml"),
    ]
    text = PAGE.read_text(encoding="utf-8")
    for block in blocks():
        assert f"`{block.path}`" in text, f"{block.path} is named in an info string only, which readers do not see"


def test_cells_are_measured_and_skipped(project: Workspace) -> None:
    rows = project.rows(EXAMPLE)
    assert {row["factors"]["size_mb"]: row["status"] for row in rows} == {
        1: "ok",
        4: "ok",
        16: "ok",
        64: "skipped",
        256: "skipped",
    }
    measured = [row for row in rows if row["status"] == "ok"]
    assert all(len(row["samples"]["copy_ms"]) == 20 and len(row["warmup"]["copy_ms"]) == 5 for row in measured)
    assert {row["timers"]["copy_ms"] for row in measured} == {"host clock"}


def test_the_table_is_shown_by_itself(project: Workspace) -> None:
    text = (project.root / "report" / "local" / "details" / "more.md").read_text()
    assert "| Size (MB)" in text and "## Copies within host memory" in text
    assert len(re.findall(r"^\| (?:1|4|16) +\| [\d.]", text, re.MULTILINE)) == 3
    assert "details/more.md" in project.report()


def test_rate_is_what_the_note_says(project: Workspace) -> None:
    with open(project.root / "results" / "local" / "tables" / f"{TABLE}.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["status"] == "ok"]
    for row in rows:
        expected = 2 * float(row["size_mb"]) * 1e6 / (float(row["copy_ms"]) * 1e-3) / 1e9
        assert float(row["gb_per_s"]) == pytest.approx(expected)


def test_nothing_is_left_to_do(project: Workspace) -> None:
    assert project.planned_jobs("--config", "preset=tiny") == set()


def test_one_more_size_measures_that_size_alone(project: Workspace) -> None:
    before = {row["id"] for row in project.rows(EXAMPLE) if row["status"] == "ok"}
    sizes = json.dumps({"copy_bandwidth": {"size_mb": [1, 2, 4, 16]}})
    done = project.run("report", "--config", "preset=tiny", f"experiments={sizes}")
    assert done.returncode == 0, done.stdout
    after = {row["id"] for row in project.rows(EXAMPLE) if row["status"] == "ok"}
    assert before < after and len(after) == len(before) + 1


def test_example_meets_the_checks_of_the_project(project: Workspace) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    for step in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *step, "--no-cache", f"perfscribe/experiments/{EXAMPLE}"],
            cwd=project.root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_config_of_the_example_is_complete(project: Workspace) -> None:
    """What tests/test_config.py asks of the real config: the schema's defaults stand in config.yaml, with a comment."""
    script = (
        "from pathlib import Path\n"
        "from perfscribe import config, config_reference\n"
        "raw = config.load(Path('config.yaml'))\n"
        f"name = {EXAMPLE!r}\n"
        "for preset in config.PRESETS:\n"
        "    stated = config.resolve({'experiments': {name: raw['experiments'][name]}}, preset)\n"
        "    assert stated == config.resolve({}, preset), preset\n"
        "assert set(raw['experiments'][name]) == set(config.resolve({}, 'cpu')['experiments'][name])\n"
        "assert f'## experiments.{name}' in config_reference.reference()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=project.root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_of_the_page_are_verbs(project: Workspace) -> None:
    from perfscribe.cli import VERBS

    verbs = [line.split()[1] for line in commands() if line.startswith("./run ")]
    assert verbs == ["plan", "report", "test"] and set(verbs) <= set(VERBS)
    done = project.run(*commands()[commands().index("./run plan --config preset=tiny")].split()[1:])
    assert done.returncode == 0 and EXAMPLE in done.stdout
