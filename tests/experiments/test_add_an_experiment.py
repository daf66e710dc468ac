"""The worked example of docs/add-an-experiment.md, taken from the page and run in a copy of the project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from workspace import ROOT, Workspace

PAGE = ROOT / "docs" / "add-an-experiment.md"
FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = "copy_bandwidth"


def test_the_example_is_measured_shown_and_done_and_meets_the_checks_of_the_project(tmp_path: Path) -> None:
    project = Workspace(tmp_path)
    project.only()
    shutil.copy2(ROOT / "pyproject.toml", project.root)
    for path, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (project.root / path).parent.mkdir(parents=True, exist_ok=True)
        (project.root / path).write_text(text)
    for step in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *step, "--no-cache", f"perfscribe/experiments/polaris/{EXAMPLE}"]
        checked = subprocess.run(ruff, cwd=project.root, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    project.succeed("report", "--config", "preset=tiny")
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
