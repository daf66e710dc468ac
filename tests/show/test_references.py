"""Published figures: the rows of references/ keep to their form, equal the seed texts, and bad rows are refused."""

import csv
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.show import references

SEEDS = ROOT.parent / "shared" / "seeds"
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed texts are not beside this checkout")
EXPERIMENTS = sorted(path.stem for path in references.FOLDER.glob("*.csv") if path.stem != "sources")
EVERY = [row for experiment in EXPERIMENTS for row in references.load(experiment)]
SOURCES = sorted({row.source for row in EVERY if row.source[-4:-1] == "-00"})  # whose text is kept, by its number


def test_every_row_has_a_value_and_every_source_a_row() -> None:
    for row in EVERY:
        assert row.text in references.WORDS or row.unit in references.TEXT_UNITS or (row.value or 0) > 0
        assert row.factors.get("dtype", "fp32") in {"fp32", "tf32", "bf16", "fp16"}
        assert row.remark.isascii()
    with (references.FOLDER / "sources.csv").open(encoding="utf-8", newline="") as file:
        sources = [row["id"] for row in csv.DictReader(file)]
    assert {row.source for row in EVERY} == set(sources) and len(sources) == len(set(sources))
    once = {(row.experiment, *sorted(row.factors.items()), row.metric, row.source, row.hardware) for row in EVERY}
    assert len(once) == len(EVERY), "a figure stands there twice"


@needs_seeds
@pytest.mark.parametrize("source", SOURCES)
def test_each_figure_stands_in_its_source(source: str) -> None:
    text = next(SEEDS.glob(f"{source[-3:]}_*")).read_text("utf-8").replace("\u2011", "-")  # a hyphen that stays
    figures = []
    for experiment in EXPERIMENTS:
        with (references.FOLDER / f"{experiment}.csv").open(encoding="utf-8", newline="") as file:
            figures += [row["value"] for row in csv.DictReader(file) if row["source"] == source]
    assert len(figures) > 10 and [figure for figure in figures if figure not in text] == []


HEADER = "experiment,factors,metric,value,unit,hardware,source,remark"
GOOD = "demo,size=small;seq_len=128;causal=true;ratio=0.5,forward_ms,1.5,ms,H100,note,"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("demo,a=1,forward_ms,~1.5,ms,H100,note,", "value: '~1.5': expected a number or one of OOM"),
        ("demo,a=1,forward_ms,1.5,GB,H100,note,", "unit: 'GB': expected one of ms, s, us"),
        ("demo,a=1,forward,1.5,ms,H100,note,", "metric: 'forward': expected a name that ends in"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "demo.csv").write_text("\n".join([HEADER, GOOD, row, ""]), encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        references.load("demo", tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'demo.csv'}, line 3: {message}")
