"""The worked example of docs/add-an-experiment.md, taken from the page and run in a copy of the project."""

import re
import shutil
import subprocess
import sys

import pytest
from workspace import ROOT, Workspace

PAGE = ROOT / "docs" / "add-an-experiment.md"
FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = "copy_bandwidth"


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
    for path, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (workspace.root / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace.root / path).write_text(text)
    done = workspace.run("report", "--config", "preset=tiny")
    assert done.returncode == 0, done.stdout
    return workspace


def test_the_example_is_measured_shown_and_done(project: Workspace) -> None:
    rows = project.rows(EXAMPLE)
    ends = {row["factors"]["size_mb"]: row["status"] for row in rows}
    assert ends == {**dict.fromkeys((1, 4, 16), "ok"), **dict.fromkeys((64, 256), "skipped")}
    measured = [row for row in rows if row["status"] == "ok"]
    assert all(len(row["samples"]["copy_ms"]) == 20 and len(row["warmup"]["copy_ms"]) == 5 for row in measured)
    assert {row["timers"]["copy_ms"] for row in measured} == {"host clock"}
    text = (project.root / "report" / "local" / "details" / "more.md").read_text()
    assert "| Size (MB)" in text and "## Copies within host memory" in text
    assert len(re.findall(r"^\| (?:1|4|16) +\| [\d.]", text, re.MULTILINE)) == 3
    assert "details/more.md" in project.report()
    assert project.planned_jobs("--config", "preset=tiny") == set()


def test_example_meets_the_checks_of_the_project(project: Workspace) -> None:
    for step in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *step, "--no-cache", f"perfscribe/experiments/{EXAMPLE}"]
        done = subprocess.run(ruff, cwd=project.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_commands_of_the_page_are_verbs(project: Workspace) -> None:
    from perfscribe.cli import VERBS

    lines = "\n".join(SHELL.findall(PAGE.read_text(encoding="utf-8"))).splitlines()
    verbs = [line.split()[1] for line in lines if line.startswith("./run ")]
    assert verbs == ["plan", "report", "test"] and set(verbs) <= set(VERBS)
    done = project.run(*lines[lines.index("./run plan --config preset=tiny")].split()[1:])
    assert done.returncode == 0 and EXAMPLE in done.stdout
