"""`./run remeasure`: what it retires, what it leaves, and what it says to words that fit nothing."""

from pathlib import Path

import faulty
import pytest
from shards import ShardJob
from workspace import Workspace

from perfscribe.base.cells import Cell
from perfscribe.verbs import remeasure

GRID = [{"n": 1, "dtype": "fp32"}, {"n": 1, "dtype": "bf16"}, {"n": 2, "dtype": "fp32"}, {"n": 2, "dtype": "bf16"}]
FAILS_AT_TWO = """def run(cell):
    note("start", cell)
    if cell["n"] == 2:
        raise ValueError("two")
    return done(cell)
"""


@pytest.fixture
def measured(tmp_path: Path) -> ShardJob:
    """Four cells, of which n=2 fail."""
    job = ShardJob(tmp_path / "root", faulty.source("probe", tmp_path / "side", FAILS_AT_TWO))
    job.plan([Cell(factors) for factors in GRID])
    job.measure()
    return job


REFUSED = {
    "": "say which experiment, as in `./run remeasure attention seq_len=1024`",
    "prob": "nothing was measured of 'prob'; known: probe; did you mean probe?",
    "probe dtypes=fp32": "no cell has the factor 'dtypes'; known: status, n, dtype; did you mean dtype?",
    "probe dtype=fp64": "no cell has dtype=fp64; known: fp32, bf16",
    "probe n=1 status=failed": "there is no record of probe n=1 status=failed",
}


def test_words_that_fit_nothing_change_nothing(measured: ShardJob) -> None:
    before = measured.journal_file.read_bytes(), measured.records_file.read_bytes()
    for words, message in REFUSED.items():
        with pytest.raises(ValueError) as caught:
            remeasure.main(measured.root, words.split(), dict)
        assert str(caught.value) == f"remeasure: {message}"
    assert (measured.journal_file.read_bytes(), measured.records_file.read_bytes()) == before


def test_a_published_site_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "results" / "h200").mkdir(parents=True)
    (tmp_path / "results" / "h200" / "published.json").write_text("{}")
    with pytest.raises(ValueError, match="site h200 was published and is read-only"):
        remeasure.main(tmp_path, ["probe"], lambda: {"site": "h200"})


def test_the_verb_and_the_report_after_it(tmp_path: Path) -> None:
    workspace, side = Workspace(tmp_path / "root"), tmp_path / "side"
    workspace.only()
    cells = 'def cells(config):\n    return [Cell({"n": n}) for n in config["n"]]\n\n\n'
    workspace.add_experiment("probe", faulty.source("probe", side, cells + FAILS_AT_TWO), n=[1, 2, 3])
    workspace.add_experiment("other", faulty.sleeping("other", side, (0,)), n=[1, 2, 3])
    first = workspace.run("report")
    assert first.returncode == 0, first.stdout  # one cell of three failed, which breaks no experiment
    kept = {row["factors"]["n"]: row["id"] for row in workspace.rows("probe")}
    done = workspace.run("remeasure", "probe", "n=2")
    assert done.returncode == 0
    assert done.stdout == "records of probe retired: 1; the next `./run report` measures their cells again\n"
    assert not [*workspace.root.glob("results/local/checksums/measure-probe-*")], "the job is due"
    assert workspace.planned_jobs() == {"measure probe 0", "present_probe", "write_report", "write_html", "verdict"}
    report = workspace.run("report")
    assert report.returncode == 0, report.stdout
    told = [line for line in report.stdout.splitlines() if "probe n=" in line or "other n=" in line]
    assert len(told) == 1 and "probe n=2: " in told[0] and "(6/6)" in told[0]
    again = {row["factors"]["n"]: row["id"] for row in workspace.rows("probe")}
    assert {n for n in kept if kept[n] != again[n]} == {2}
    assert faulty.notes(side) == {"probe 2": 2} | {
        cell: 1 for cell in ("probe 1", "probe 3", "other 1", "other 2", "other 3")
    }
    assert "records of other retired: 3;" in workspace.run("remeasure", "other").stdout
