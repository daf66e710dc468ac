"""The page's example on a real workflow, and the chapter that puts an own site beside committed ones."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from compared_sites import Measured, identity, steady, write_site
from workspace import ROOT, Workspace

from perfscribe import report
from perfscribe.comparing import beside, sides

MEASURE = '''"""Times of a test that are made up."""
from perfscribe.cells import Cell, Measurement

FACTOR = 2.0


def cells(config):
    return [Cell({"device": "cpu", "n": n}) for n in config["n"]]


def run(cell):
    times = [FACTOR * cell["n"] * (1 + 0.001 * place) for place in range(5)]
    return Measurement(samples={"time_ms": times}, timers={"time_ms": "host clock"})
'''


class Repository(Workspace):
    """A project tree that is a git repository, so that records name its commits."""

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(self.root), *who, *words], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository with the experiment of the page's example, measured at its first commit."""
    made = Repository(tmp_path_factory.mktemp("comparing") / "checkout")
    made.only()
    made.add_experiment("probe", MEASURE, n=[1, 2, 3])
    made.set_config("experiments: {probe: {rounds: 6}}\n")
    shutil.copy(ROOT / ".gitignore", made.root)
    made.git("init", "--quiet")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message", "First")
    return made


def example() -> list[str]:
    """The lines of the page's example."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    found = re.search(r"^```bash example\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def test_the_example_of_the_page(space: Repository) -> None:
    lines = [shlex.split(line) for line in example()]
    assert [words[0] for words in lines] == ["./run", "git", "./run", "./run"]
    first = space.run(*lines[0][1:])
    assert first.returncode == 0, first.stdout
    path = space.root / "perfscribe" / "experiments" / "probe" / "measure.py"
    path.write_text(MEASURE.replace("FACTOR = 2.0", "FACTOR = 1.5"))
    space.git(*lines[1][1:])
    second = space.run(*lines[2][1:])
    assert second.returncode == 0, second.stdout
    compared = space.run(*lines[3][1:])
    assert compared.returncode == 0, compared.stdout
    said = "**3 cells of 1 experiment measured at both sides.** Of their figures, by verdict on B: 3 faster."
    assert said in compared.stdout  # cells too short for the host's load to be told
    back = [*lines[3][1:2], *reversed(lines[3][2:4]), *lines[3][4:]]
    assert space.run(*back).returncode == 1


def test_an_own_site_stands_beside_a_committed_one(space: Repository) -> None:
    assert space.run("report").returncode == 0
    assert beside.NOBODY in space.report()
    assert space.planned_jobs() == set()
    cells = [Measured({"device": "cpu", "n": n}, steady(10.0 * n)) for n in (1, 2, 4)]
    write_site(space.root, "demo", cells, machine=identity(cpu_model="CPU Two"))
    assert space.planned_jobs() == {"write_report", "write_html", "verdict"}
    assert space.run("report").returncode == 0
    assert space.planned_jobs() == set()
    text = space.report()
    chapter = text.split(f"\n{beside.TITLE}\n")[1].split("\n# ")[0]
    assert "## local against demo" in chapter and "`./run compare demo local`" in chapter
    assert "2 cells of 1 experiment measured at both sides" in chapter and "CPU Two" in chapter
    assert text.index(beside.TITLE) > text.index("# Chapter") and text.index(beside.TITLE) < text.index("# Method")
    write_site(space.root, "demo", cells[:1], machine=identity(cpu_model="CPU Two"))
    assert space.planned_jobs() == {"write_report", "write_html", "verdict"}


def test_a_committed_site_stays_as_it_is_whichever_others_there_are(tmp_path: Path) -> None:
    (tmp_path / "report" / "templates").mkdir(parents=True)
    said = beside.chapter(None, [], "demo")
    assert "[report/README.md](../README.md)" in said and "./run compare demo SITE" in said
    assert report.Sources(tmp_path, "demo", {}, {}).own is None


def test_cells_are_shown_from_all_along_their_levels(tmp_path: Path) -> None:
    for site, time_ms in (("demo", 1.0), ("local", 3.0)):
        write_site(tmp_path, site, [Measured({"device": "cuda", "n": n}, steady(time_ms)) for n in range(1, 21)])
    text = beside.chapter(sides.read(tmp_path, "local"), [sides.read(tmp_path, "demo")], "local")
    shown = [int(found) for found in re.findall(r"^\| `probe` +\| n (\d+) ", text, re.MULTILINE)]
    assert len(shown) == beside.MOST_CELLS and shown[0] == 1 and shown[-1] == 20 and shown == sorted(shown)
    assert "| `probe`      | 20 " in text and "20 slower" in text


def test_sites_without_a_cell_in_common_say_what_they_have(tmp_path: Path) -> None:
    write_site(tmp_path, "demo", [Measured({"n": 1}, steady(1))], experiment="attention")
    write_site(tmp_path, "local", [Measured({"n": 1}, steady(1))])
    text = beside.chapter(sides.read(tmp_path, "local"), [sides.read(tmp_path, "demo")], "local")
    assert "No cell that is compared was measured at both sides" in text
    assert "Measured at A alone: `attention`; at B alone: `probe`." in text
