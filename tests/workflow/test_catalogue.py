"""What the Snakemake workflow catalogue reads of this repository is there, valid and true."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from workspace import ROOT, Workspace

SETTINGS = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))
METHODS = {"conda", "apptainer", "apptainer+conda"}


def test_the_file_has_the_catalogue_s_keys() -> None:
    assert set(SETTINGS) == {"usage"}
    usage = SETTINGS["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
    assert all(isinstance(text, str) for text in usage["mandatory-flags"].values())
    assert set(usage["software-stack-deployment"]) == METHODS
    assert all(isinstance(value, bool) for value in usage["software-stack-deployment"].values())


def test_the_catalogue_finds_the_workflow() -> None:
    """Its words in the README, a Snakefile in the folder `workflow`, rules in files that end in .smk."""
    words = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in words and "workflow" in words
    assert (ROOT / "workflow" / "Snakefile").is_file()
    assert {path.suffix for path in (ROOT / "rules").iterdir() if path.is_file()} == {".smk"}
    assert not (ROOT / "workflow" / "rules").exists()


def test_snakemake_s_own_report_shows_figures_tables_and_the_page(tmp_path: Path) -> None:
    """What the catalogue is told of `--report`."""
    assert SETTINGS["usage"]["report"] is True
    space = Workspace(tmp_path / "project")
    space.only("autocast_dtypes")
    assert space.run("report", "--config", "preset=tiny").returncode == 0
    done = space.run("--report", str(tmp_path / "run.html"), "--config", "preset=tiny")
    assert done.returncode == 0, done.stdout
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    shown = dict(re.findall(r'"labels": \{"what": "(\w+)", "name": "([^"]+)"\}', page)[::-1])
    assert shown == {"table": "cs336.autocast_dtypes", "page": "the report"}
    assert not re.search(r'(?:src|href)="https?:', page)
