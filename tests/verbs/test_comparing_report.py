"""The page's example on a real workflow."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from workspace import ROOT, Workspace

MEASURE = '''"""Times of a test that are made up."""
from perfscribe.base.cells import Cell, Measurement

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
