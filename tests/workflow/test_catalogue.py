"""What the Snakemake workflow catalogue is told of Snakemake's own report is true."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from workspace import ROOT, Workspace

SETTINGS = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))


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
