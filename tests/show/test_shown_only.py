"""An experiment that measures nothing and shows what another one measured, with a file of its own, in the workflow."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from workspace import Workspace, shown_by

from perfscribe.base import registry

MEASURE = '''"""Three cells without libraries."""
from perfscribe.base.cells import Cell, Measurement


def cells(config):
    return [Cell({"n": n}, cost=float(n)) for n in config["n"]]


def run(cell):
    return Measurement(samples={"time_ms": [float(cell["n"])] * 3}, timers={"time_ms": "host clock"})
'''
PRESENT = '''"""What probe measured, once more."""
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES = ("cs336.reader",)
FIGURES = ("cs336.reader",)
FILES = ("reader.txt",)
READS = ("probe",)


def tables(records):
    columns = [t.factor("n", "n"), t.derived("twice_ms", "Twice (ms)", lambda r: 2 * t.summary(r, "time_ms").median)]
    return [t.make(TABLES[0], "Twice", records["probe"], columns)]


def files(tables):
    return {FILES[0]: f"{len(tables[TABLES[0]].ok)} rows\\n"}


def figures(tables):
    return [f.Figure(FIGURES[0], "Points.", lambda canvas: canvas.subplots().plot([1, 2, 3]), sample="time_ms")]
'''
SHOWN = '"""What reader shows."""\nfrom perfscribe.base.registry import Shown\n\nSHOWN = Shown(**{shown!r})\n'
TINY = ("--config", "preset=tiny")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Both experiments, their report written."""
    space = Workspace(tmp_path_factory.mktemp("shown") / "project")
    space.only()
    space.add_experiment("probe", MEASURE, n=[1, 2, 3])
    folder = space.root / "perfscribe" / "experiments" / "reader"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Reader."""\n')
    (folder / "show.py").write_text(PRESENT)
    (folder / "levels.py").write_text(SHOWN.format(shown=shown_by(PRESENT)))
    done = space.run("report", *TINY)
    assert done.returncode == 0, done.stdout
    return space


def results(project: Workspace) -> Path:
    return project.root / "results" / "local"


def test_it_is_shown_from_the_others_records(project: Workspace) -> None:
    with (results(project) / "tables" / "cs336.reader.csv").open(newline="") as stream:
        assert [(row["n"], row["twice_ms"]) for row in csv.DictReader(stream)] == [
            ("1", "2.0"),
            ("2", "4.0"),
            ("3", "6.0"),
        ]
    more = (project.root / "report" / "local" / "details" / "more.md").read_text(encoding="utf-8")
    assert "## Twice" in more
    svg = (project.root / "report" / "local" / "figures" / "cs336.reader.svg").read_text()
    assert "n = 3 a cell" in svg, "the foot counts the samples of what was read"
    assert (
        not (results(project) / "journal" / "reader").exists()
        and not (results(project) / "records" / "reader").exists()
    )


def test_edits_and_losses_rerun_what_they_touch(project: Workspace) -> None:
    due = {"present_reader", "write_report", "write_html", "verdict"}
    file, records = results(project) / "tables" / "reader.txt", results(project) / "records" / "probe" / "0.jsonl"
    assert file.read_text() == "3 rows\n" and project.planned_jobs(*TINY) == set()
    file.unlink()
    assert project.planned_jobs(*TINY) == due
    file.write_text("3 rows\n")
    records.unlink()
    assert project.planned_jobs(*TINY) == due | {"measure probe 0", "present_probe"}


def test_it_is_left_out_with_what_it_reads(project: Workspace) -> None:
    off = 'experiments={"probe": {"enabled": false}}'
    made = [results(project) / "tables" / name for name in ("cs336.reader.csv", "cs336.reader.json", "reader.txt")]
    made += [project.root / "report" / "local" / "figures" / f"cs336.reader.{kind}" for kind in ("svg", "png")]
    mine = results(project) / "tables" / "cs336.mine.csv"
    mine.write_text("a user's own\n")
    assert all(path.is_file() for path in made)
    assert project.run("report", *TINY, off).returncode == 0
    assert not [path for path in made if path.exists()] and mine.is_file()
    assert project.planned_jobs(*TINY, off) == set()


def test_an_id_begins_with_its_chapter() -> None:
    with pytest.raises(
        ValueError, match=r"^memory\.copies: expected an id that begins with one of cs336, polaris, fsdp"
    ):
        registry.Shown(("memory.copies",))
