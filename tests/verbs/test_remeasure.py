"""`./run remeasure`: what it retires, what it leaves, and what it says to words that fit nothing."""

from pathlib import Path

import faulty
import pytest
from shards import ShardJob

from perfscribe.base import files
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
        remeasure.main(tmp_path, ["probe"], lambda _: {"site": "h200"})


def test_what_is_retired_is_measured_again_alone(measured: ShardJob, capsys: pytest.CaptureFixture[str]) -> None:
    of_job, of_another = (measured.site / "checksums" / f"measure-{name}-0.json" for name in ("probe", "other"))
    for path in (of_job, of_another):
        files.write_json(path, {})
    kept = {row["id"] for row in measured.rows()}
    assert remeasure.main(measured.root, ["probe", "n=2", "status=failed", "dtype=fp32"], dict) == 0
    told = "records of probe retired: 1; the next `./run report` measures their cells again\n"
    assert capsys.readouterr().out == told
    assert of_another.exists() and not of_job.exists(), "the job is due"
    (new,) = [row for row in measured.measure() if row["id"] not in kept]
    assert new["factors"] == {"n": 2, "dtype": "fp32"}


def test_what_another_commit_measured_stays(measured: ShardJob, capsys: pytest.CaptureFixture[str]) -> None:
    """For `compare`, and for the edit to be taken back."""
    (source,) = measured.root.rglob("probe/measure.py")
    source.write_text(source.read_text() + "\nLATER = 1\n")
    measured.plan([Cell(factors) for factors in GRID])
    measured.measure()
    assert remeasure.main(measured.root, ["probe"], dict) == 0
    assert "records of probe retired: 4;" in capsys.readouterr().out
