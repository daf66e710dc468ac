"""`./run fill`: which table of the hand-in is meant, what a cell gets, what stays, what the verb says and refuses."""

import re
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.base import files
from perfscribe.report.page import Cell, Table
from perfscribe.verbs.fill import document, verb
from perfscribe.verbs.fill.matching import Known, NoMatch, choose

SEEDS = ROOT.parent / "shared" / "seeds"
NOT_MEASURED = Cell("-", filled=False)
HEAD = "| Setup | Total GPUs | Time (ms) |\n|---|---|---|\n"


def label(text: str) -> Cell:
    return Cell(text, able=False, filled=False)


def known(title: str = "Times, ms", heading: str = "Baseline") -> Known:
    rows = [
        [label("One GPU"), label("1"), Cell("12.3 ± 0.1")],
        [label("Two GPUs"), label("2"), Cell("5.5†")],
        [label("Four GPUs"), label("4"), NOT_MEASURED],
    ]
    return Known(heading, Table(title, "Median.", ["Setup", "Total GPUs", "Time (ms)"], rows))


def filled(text: str, *tables: Known, overwrite: bool = False) -> tuple[str, list[str]]:
    found = document.parse(text)
    told, _ = verb.fill(found, tables or [known()], overwrite)
    return "".join(found.lines), told


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("| One GPU |  |  |", "| One GPU | 1 | 12.3 |"),
        ("| Two GPUs | 2 | - |", "| Two GPUs | 2 | 5.5† |"),  # as filled before it was measured
        ("| Two GPUs | 2 |  |", "| Two GPUs | 2 | 5.5† |"),
        ("| Four GPUs | 4 |  |", "| Four GPUs | 4 | - |"),
        ("| Four GPUs | 4", "| Four GPUs | 4 | - |"),
        ("| One GPU | 1 | by hand: 15 |", "| One GPU | 1 | by hand: 15 |"),
    ],
)
def test_what_a_cell_gets(row: str, expected: str) -> None:
    text, _ = filled(HEAD + row + "\n")
    assert [re.sub(" +", " ", line) for line in text.splitlines()] == [*HEAD.splitlines(), expected]
    again, _ = filled(text)
    assert again == text


def test_a_mark_of_the_whole_table_is_on_each_of_its_figures() -> None:
    text, told = filled(HEAD + "| One GPU | 1 | |\n| Four GPUs | 4 | |\n", known("Times, ms‡"))
    assert "| 12.3‡ |" in text and "| - |" in text
    assert "marked: settings other than the homework's" in told[0]


def test_a_row_that_is_none_is_told_and_stays() -> None:
    for labels in ("Eight GPUs | 8", "Two GPUs | 8"):
        row = f"| {labels} |  |\n"
        text, told = filled(HEAD + "| One GPU | 1 | |\n" + row)
        assert text.endswith(row) and f"{labels.replace(' |', ' /')}: no such row in the hand-in" in told[0]
    asked = "| Total GPUs | Setup | Time (ms) |\n|---|---|---|\n| 1 | One GPU | |\n| 2 | Two other GPUs | |\n"
    assert filled(asked)[0].endswith("| 1 | One GPU | 12.3 |\n| 2 | Two other GPUs | |\n")


def test_a_word_behind_the_first_label_decides_too() -> None:
    header = ["implementation", "dtype", "bucket_mb", "ms"]
    rows = [[label("flat"), label("fp32"), label("-"), Cell("9")]]
    rows += [[label("bucketed"), label("fp32"), label(bucket), Cell(ms)] for bucket, ms in (("1", "7"), ("10", "8"))]
    head = "| implementation | dtype | bucket_mb | ms |\n|---|---|---|---|\n"
    none = "| flat | bf16 | | |\n| bucketed | bf16 | 1 | |\n"
    asked = f"{head}| flat | fp32 | | |\n| bucketed | fp32 | 10 | |\n{none}"
    text, told = filled(asked, Known("DDP", Table("Steps", "", header, rows)))
    assert text == f"{head}| flat | fp32 | - | 9 |\n| bucketed | fp32 | 10 | 8 |\n{none}"
    assert "flat / bf16: no such row" in told[0] and "bucketed / bf16 / 1: no such row" in told[0]


def test_the_heading_above_decides_between_like_tables() -> None:
    tables = [known(heading="Baseline without FSDP"), known(heading="Custom Model (Single Node)")]
    for heading, place in (("Custom Model (Single Node)", 1), ("Baseline without FSDP:", 0)):
        found = document.parse(f"# {heading}\n\n## Results\n\n{HEAD}| One GPU | 1 | |\n")
        assert choose(found.tables[0], tables).known is tables[place]
    with pytest.raises(NoMatch, match="it may be Baseline without FSDP: Times, ms or Custom"):
        choose(document.parse(HEAD + "| One GPU | 1 | |\n").tables[0], tables)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_nothing_else_of_the_file_changes(end: str) -> None:
    lines = ["# T", "", "> | Setup | Total GPUs | Time (ms) |", "> |---|---|---|", "> | One GPU | 1 |  |", "x"]
    before = end.join(lines)
    text, _ = filled(before)
    assert text == before.replace("| One GPU | 1 |  |", "| One GPU | 1 | 12.3 |")


# How many tables of each source are the hand-in's.
OF_SEED = {"000": 2, "002": 4, "003": 8, "004": 1}


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the sources are not here")
@pytest.mark.parametrize("number", OF_SEED)
@pytest.mark.parametrize("site", sorted(path.parent.name for path in ROOT.glob("results/*x4/published.json")))
def test_blanked_tables_of_the_sources_are_filled(site: str, number: str) -> None:
    [path] = SEEDS.glob(f"{number}_*.txt")
    tables = verb.known(ROOT, site)
    found = document.parse(path.read_text(encoding="utf-8"))
    fits = []
    for table in found.tables:
        try:
            fits.append((table, choose(table, tables)))
        except NoMatch:
            continue
    assert len(fits) == OF_SEED[number]
    assert len({fit.known.name for _, fit in fits}) == len(fits)
    for table, fit in fits:
        for row in table.rows:
            blank = {
                place: ""
                for place, column in enumerate(fit.columns)
                if column is not None and fit.row(row.texts)[column].able
            }
            found.lines[row.line] = document.filled_line(found.lines[row.line], row, blank)
    found = document.parse("".join(found.lines))
    told, total = verb.fill(found, tables)
    assert total > 0 and not [line for line in told if "no such row" in line or "several rows" in line]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], r"run: fill: the following arguments are required: FILE\.md \(\./run fill --help\)"),
        (["notes.md", "--site", "../x"], r"fill: there is no report of site '\.\./x'; there are local"),
        (["empty.md"], r"fill: .*empty\.md: there is no table in it"),
        (["latin.md"], r"fill: .*latin\.md: not UTF-8 text .*"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_json(tmp_path / "results" / "local" / "summary.json", {"gpus": 0})
    (tmp_path / "notes.md").write_text("| a | b |\n|---|---|\n| 1 | |\n")
    (tmp_path / "empty.md").write_text("# Nothing\n")
    (tmp_path / "latin.md").write_bytes(b"\xe9|")
    with pytest.raises((ValueError, SystemExit), match=rf"^{line}$"):
        verb.main(tmp_path, words, dict)
