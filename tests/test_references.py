"""Published figures: the rows of references/ keep to their form, equal the seed texts, and bad rows are refused."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import seed_figures

from perfscribe.show import references
from perfscribe.show.references import Reference

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"
EXPERIMENTS = sorted(path.stem for path in references.FOLDER.glob("*.csv") if path.stem != "sources")
DTYPES = {"fp32", "tf32", "bf16", "fp16"}
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed texts are not beside this checkout")


def of(experiment: str, source: str, *metrics: str) -> list[Reference]:
    rows = references.load(experiment)
    return [row for row in rows if row.source == source and (not metrics or row.metric in metrics)]


def raw_rows() -> list[dict[str, str]]:
    rows = []
    for experiment in EXPERIMENTS:
        with (references.FOLDER / f"{experiment}.csv").open(encoding="utf-8", newline="") as file:
            rows += list(csv.DictReader(file))
    return rows


# --- form -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_row_loads(experiment: str) -> None:
    rows = references.load(experiment)
    assert rows
    for row in rows:
        assert row.experiment == experiment
        assert row.value is not None or row.text in references.WORDS or row.unit in references.TEXT_UNITS
        assert row.value is None or row.value > 0
        assert DTYPES.issuperset({row.factors["dtype"]} if "dtype" in row.factors else set())
        assert row.remark.isascii() and "/work" not in row.remark


def test_every_source_is_used_and_its_hardware_given() -> None:
    used = {row["source"] for row in raw_rows()}
    assert used == set(references.load_sources())


def test_expected_counts() -> None:
    times = ("forward_ms", "backward_ms", "full_step_ms")
    assert len(of("attention", "cs336-writeup-002", *times, "memory_before_backward_gib")) == 60
    compiled = of("torch_compile", "cs336-writeup-002", *times)
    assert len(compiled) == 92
    assert sum("size" in row.factors for row in compiled) == 12
    flash = of("flash_benchmarking", "cs336-writeup-002")
    assert len(flash) == 480
    assert Counter(row.text for row in flash)["OOM"] == 12
    assert len(of("all_reduce", "cs336-writeup-002")) == 96


def test_mixed_precision_of_both_writeups_is_35_cells() -> None:
    """10 times of A; 15 times and 10 speedups of B, 9 of these 25 printed as N/A."""
    a = of("mixed_precision", "cs336-writeup-002", "forward_backward_ms")
    b = of("mixed_precision", "cs336-writeup-004", "forward_backward_ms", "speedup")
    assert (len(a), len(b)) == (10, 25)
    assert Counter(row.metric for row in b) == {"forward_backward_ms": 15, "speedup": 10}
    assert [row.text for row in a + b].count("N/A") == 9


# --- seed texts -----------------------------------------------------------------------------------------------


@needs_seeds
@pytest.mark.parametrize("source", seed_figures.SOURCES)
def test_seed_and_csv_hold_the_same_figures(source: str) -> None:
    read = seed_figures.figures(source, seed_figures.texts(SEEDS)[source])
    kept = {
        (row["experiment"], frozenset(row["factors"].split(";")) - {""}, row["metric"]): (row["value"], row["unit"])
        for row in raw_rows()
        if row["source"] == source
    }
    only_in_text = sorted(map(str, read.keys() - kept.keys()))
    only_in_csv = sorted(map(str, kept.keys() - read.keys()))
    assert (only_in_text, only_in_csv) == ([], [])
    assert {key: (kept[key], read[key]) for key in read if kept[key] != read[key]} == {}


@needs_seeds
@pytest.mark.parametrize("source", seed_figures.NOT_RESULTS)
def test_no_number_of_a_seed_is_overlooked(source: str) -> None:
    text = seed_figures.texts(SEEDS)[source]
    assert seed_figures.unread_numbers(source, text, seed_figures.figures(source, text)) == set()


@needs_seeds
def test_the_workshop_publishes_no_table() -> None:
    cells = seed_figures.workshop_result_cells(seed_figures.texts(SEEDS)["fsdp-workshop-003"])
    assert len(cells) > 100
    assert set(cells) == {"", "100% (baseline)"}


# --- values and look-up ---------------------------------------------------------------------------------------


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
    (oom,) = references.find(
        of("flash_benchmarking", "cs336-writeup-002"),
        "backward_ms",
        seq_len=65536,
        head_dim=16,
        dtype="fp32",
        implementation="eager",
    )
    assert (oom.text, oom.value) == ("OOM", None)


def test_of_source_wants_what_the_source_states() -> None:
    known = references.load("torch_compile")
    levels = {"size": "small", "implementation": "eager", "seq_len": 512, "dtype": "fp32", "batch": 4}
    stated = references.of_source(known, "cs336-writeup-002", "forward_ms", levels)
    assert stated is not None and stated.value == 31.5  # it states neither context nor batch
    found = references.of_source(known, "yyin-dev", "full_step_ms", levels)
    assert found is not None and found.value == pytest.approx(82.7)
    assert references.of_source(known, "yyin-dev", "full_step_ms", {**levels, "seq_len": 64}) is None
    assert references.of_source(known, "yyin-dev", "full_step_ms", {"size": "small"}) is None
    assert references.of_source(known, "brandon-snider", "no_such_ms", levels) is None


def test_find_wants_every_given_factor() -> None:
    rows = references.load("attention")
    one = references.find(rows, "forward_ms", seq_len=4096, head_dim=64, implementation="eager")
    assert len({row.source for row in one}) == len(one) >= 4
    assert references.find(rows, "forward_ms", seq_len=4096.0, head_dim=64, implementation="eager") == one
    assert references.find(rows, "forward_ms", seq_len=4096, no_such_factor=1) == []
    assert references.find(rows, "no_such_metric", seq_len=4096) == []


def test_an_experiment_without_figures_has_none() -> None:
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
    assert row.factors == {"size": "small", "seq_len": 128, "causal": True, "ratio": 0.5}
    assert [type(level) for level in row.factors.values()] == [str, int, bool, float]
    assert row.value == 1.5 and row.remark == ""


BAD = [
    ("demo,a=1,forward_ms,1.5,ms,H100,note", "7 cells, expected 8"),
    ("", "0 cells, expected 8"),
    ("other,a=1,forward_ms,1.5,ms,H100,note,", "experiment: 'other': expected 'demo'"),
    ("demo,a=1,forward_ms,1.5,ms,H100,elsewhere,", "source: 'elsewhere': not in sources.csv"),
    ("demo,a=1,forward_ms,1.5,ms,,note,", "hardware: blank"),
    ("demo,a=1,forward_ms,,ms,H100,note,", "value: blank"),
    ("demo,a=1,forward_ms, 1.5,ms,H100,note,", "value: ' 1.5': white space"),
    ("demo,a=1,forward_ms,~1.5,ms,H100,note,", "value: '~1.5': expected a number or one of OOM"),
    ("demo,a=1,forward_ms,nan,ms,H100,note,", "value: 'nan'"),
    ("demo,a=1,forward_ms,oom,ms,H100,note,", "value: 'oom'"),
    ('demo,a=1,forward_ms,"1,5",ms,H100,note,', "value: '1,5'"),
    ("demo,a=1,forward_ms,1.5,GB,H100,note,", "unit: 'GB': expected one of ms, s, us"),
    ("demo,a=1,peak_gib,1.5,GB,H100,note,", "unit: 'GB': expected one of GiB, MiB"),
    ("demo,a=1,forward_ms,OOM,GB,H100,note,", "unit: 'GB'"),
    ("demo,a=1,forward,1.5,ms,H100,note,", "metric: 'forward': expected a name that ends in"),
    ("demo,a=1,Forward_ms,1.5,ms,H100,note,", "metric: 'Forward_ms'"),
    ("demo,a,forward_ms,1.5,ms,H100,note,", "factors: 'a': expected name=value"),
    ("demo,a=1;,forward_ms,1.5,ms,H100,note,", "factors: ''"),
    ("demo,a=1; b=2,forward_ms,1.5,ms,H100,note,", "factors: ' b=2'"),
    ("demo,a=1;a=2,forward_ms,1.5,ms,H100,note,", "factors: 'a' stands there twice"),
    ('demo,"a=1,forward_ms,1.5,ms,H100,note,', "unexpected end of data"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_row_names_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        references.load("demo", folder_with(tmp_path, GOOD, row))
    assert str(caught.value).startswith(f"{tmp_path / 'demo.csv'}, line 3: {message}")
    assert "\n" not in str(caught.value)


def test_a_repeated_figure_names_both_lines(tmp_path: Path) -> None:
    swapped = "demo,causal=true;ratio=0.5;seq_len=128;size=small,forward_ms,1.6,ms,H100,note,"
    with pytest.raises(ValueError, match=r"demo\.csv, line 3: the same figure as in line 2"):
        references.load("demo", folder_with(tmp_path, GOOD, swapped))


def test_a_wrong_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"demo\.csv, line 1: expected the columns experiment,factors"):
        references.load("demo", folder_with(tmp_path, GOOD, header="experiment,metric"))


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    twice = SOURCES_CSV + "note,Again,H100,,\n"
    with pytest.raises(ValueError, match=r"sources\.csv, line 3: source 'note' is there already"):
        references.load("demo", folder_with(tmp_path, GOOD, sources=twice))
    with pytest.raises(ValueError, match=r"sources\.csv: No such file"):
        references.load("demo", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["sources", "../attention", "", "Attention"])
def test_only_names_of_experiments_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of an experiment"):
        references.load(name)


def test_bytes_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, GOOD)
    (folder / "demo.csv").write_bytes(f"{HEADER}\n".encode() + b"\xff\n")
    with pytest.raises(ValueError, match=r"demo\.csv, line \d: .*utf-8"):
        references.load("demo", folder)


def test_light_import() -> None:
    """The report's parse-time code may import this module: csv, no pandas or torch."""
    import subprocess
    import sys

    code = "import sys, perfscribe.show.references; print(sorted({'pandas', 'numpy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
