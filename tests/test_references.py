"""Published figures: the rows of references/ keep to their form, stand in the seed texts, and bad rows are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.show import references
from perfscribe.show.references import Reference

SEEDS = ROOT.parent / "shared" / "seeds"
SOURCES = {
    "polaris-homework-000": "000",
    "polaris-homework-001": "001",
    "cs336-writeup-002": "002",
    "fsdp-workshop-003": "003",
    "cs336-writeup-004": "004",
}
EXPERIMENTS = sorted(path.stem for path in references.FOLDER.glob("*.csv") if path.stem != "sources")
EVERY = [row for experiment in EXPERIMENTS for row in references.load(experiment)]


def of(experiment: str, source: str) -> list[Reference]:
    return [row for row in references.load(experiment) if row.source == source]


def test_every_row_has_a_value_and_every_source_a_row() -> None:
    for row in EVERY:
        assert row.text in references.WORDS or row.unit in references.TEXT_UNITS or (row.value or 0) > 0
        assert row.factors.get("dtype", "fp32") in {"fp32", "tf32", "bf16", "fp16"}
        assert row.remark.isascii() and "/work" not in row.remark
    assert {row.source for row in EVERY} == set(references.load_sources())


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed texts are not beside this checkout")
@pytest.mark.parametrize("source", SOURCES)
def test_every_figure_stands_in_its_source(source: str) -> None:
    text = next(SEEDS.glob(f"{SOURCES[source]}_*")).read_text("utf-8").replace("\u2011", "-")
    figures = {row.text for row in EVERY if row.source == source}
    assert figures and {one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", text)} == set()


def test_values_stand_in_the_unit_of_the_metric() -> None:
    seconds = references.find(
        of("all_reduce", "cs336-writeup-002"), "time_ms", backend="gloo", world_size=2, size_mb=1, rank=0
    )
    assert [(row.text, row.unit, row.value) for row in seconds] == [("0.0021327375434339046", "s", 2.1327375434339046)]
    (hundred,) = references.find(of("attention", "yyin-dev"), "forward_ms", seq_len=16384, head_dim=16)
    assert (hundred.text, hundred.unit, hundred.value) == ("4.7718", "s/100", 47.718)
    (mebi,) = references.find(of("attention", "yyin-dev"), "memory_before_backward_gib", seq_len=16384, head_dim=16)
    assert (mebi.unit, mebi.value) == ("MiB", 16761.5 / 1024)
    (commas,) = references.find(of("attention", "cs336-writeup-002"), "one_matrix_bytes")
    assert (commas.text, commas.value) == ("8,589,934,592", 8 * 2**30)
    oom = references.find(of("flash_benchmarking", "cs336-writeup-002"), "backward_ms", seq_len=65536, head_dim=16,
                          dtype="fp32", implementation="eager")  # fmt: skip
    assert [(row.text, row.value) for row in oom] == [("OOM", None)]


def test_of_source_wants_what_the_source_states() -> None:
    known = references.load("torch_compile")
    levels = {"size": "small", "implementation": "eager", "seq_len": 512, "dtype": "fp32", "batch": 4}
    stated = references.of_source(known, "cs336-writeup-002", "forward_ms", levels)
    assert stated is not None and stated.value == 31.5  # it states neither context nor batch
    assert references.of_source(known, "yyin-dev", "full_step_ms", levels) is not None
    assert references.of_source(known, "yyin-dev", "full_step_ms", {**levels, "seq_len": 64}) is None


def test_find_wants_every_given_factor() -> None:
    rows = references.load("attention")
    one = references.find(rows, "forward_ms", seq_len=4096.0, head_dim=64, implementation="eager")
    assert len({row.source for row in one}) == len(one) >= 4
    assert references.find(rows, "forward_ms", seq_len=4096, no_such_factor=1) == []
    assert references.load("no_such_experiment") == []


# --- bad files ------------------------------------------------------------------------------------------------

SOURCES_CSV = "id,description,hardware,url,licence\nnote,A note,H100,,\n"
HEADER = ",".join(references.COLUMNS)
GOOD = "demo,size=small;seq_len=128;causal=true;ratio=0.5,forward_ms,1.5,ms,H100,note,"


def folder_with(tmp_path: Path, *rows: str, header: str = HEADER, sources: str = SOURCES_CSV) -> Path:
    (tmp_path / "sources.csv").write_text(sources, encoding="utf-8")
    (tmp_path / "demo.csv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return tmp_path


def test_levels_are_parsed(tmp_path: Path) -> None:
    (row,) = references.load("demo", folder_with(tmp_path, GOOD))
    assert [(level, type(level)) for level in row.factors.values()] == [
        ("small", str), (128, int), (True, bool), (0.5, float)
    ]  # fmt: skip
    assert row.value == 1.5 and row.remark == ""


BAD = [
    ("demo,a=1,forward_ms,1.5,ms,H100,note", "7 cells, expected 8"),
    ("demo,a=1,forward_ms,1.5,ms,H100,elsewhere,", "source: 'elsewhere': not in sources.csv"),
    ("demo,a=1,forward_ms,~1.5,ms,H100,note,", "value: '~1.5': expected a number or one of OOM"),
    ("demo,a=1,forward_ms,1.5,GB,H100,note,", "unit: 'GB': expected one of ms, s, us"),
    ("demo,a=1,forward,1.5,ms,H100,note,", "metric: 'forward': expected a name that ends in"),
    ("demo,a,forward_ms,1.5,ms,H100,note,", "factors: 'a': expected name=value"),
    ("demo,causal=true;ratio=0.5;seq_len=128;size=small,forward_ms,1.6,ms,H100,note,", "the same figure as in line 2"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_row_names_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        references.load("demo", folder_with(tmp_path, GOOD, row))
    assert str(caught.value).startswith(f"{tmp_path / 'demo.csv'}, line 3: {message}")
    assert "\n" not in str(caught.value)


def test_bad_headers_and_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"demo\.csv, line 1: expected the columns experiment,factors"):
        references.load("demo", folder_with(tmp_path, GOOD, header="experiment,metric"))
    twice = SOURCES_CSV + "note,Again,H100,,\n"
    with pytest.raises(ValueError, match=r"sources\.csv, line 3: source 'note' is there already"):
        references.load("demo", folder_with(tmp_path, GOOD, sources=twice))


def test_light_import() -> None:
    """Parse-time code may import this module: csv, no pandas or torch."""
    code = "import sys, perfscribe.show.references; print(sorted({'pandas', 'numpy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
