"""`./run fill`: which table is meant, what a cell gets, what the verb says and refuses, and its page's example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fill_site
import pytest
from workspace import ROOT

from perfscribe.filling import comments, rewriting, units, verb
from perfscribe.filling.document import Comment
from perfscribe.filling.outcome import Outcome
from perfscribe.filling.site_tables import same_level

SCALING = "demo.scaling"
COLUMNS = [
    ("device", "Device", "factor"),
    ("model_name", "Model", "factor"),
    ("ranks", "Total GPUs", "factor"),
    ("origin", "Origin", "factor"),
    ("time_ms", "Time (ms)", "figure"),
    ("iqr_ms", "IQR", "figure"),
    ("peak_gib", "Peak memory (GiB)", "figure"),
    ("loss_iqr", "IQR", "figure"),
]


def row(ranks: int, time: object, peak: object = 2, **others: object) -> dict[str, object]:
    figures = {"time_ms": time, "iqr_ms": 7, "peak_gib": peak, "loss_iqr": 8}
    return {"device": "cuda", "model_name": "org/big-1b", "ranks": ranks, "origin": "measured", **figures, **others}


ROWS = [
    row(1, 12.345, status="ok", flags="host busy"),
    row(2, "skipped", "skipped", status="skipped", reason="4 GPUs"),
    row(2, 5.5, origin="predicted"),
    row(4, 3, "oom", status="oom", reason="asked for 64.0 GiB"),
    row(8, "failed", "failed", status="failed", reason="RuntimeError: " + "x|" * 60),
    row(16, "not counted"),
    row(32, 1, 1),
    row(32, 2, 1, model_name="small"),
]
FACTORS = "device, model_name, ranks, origin"
HEAD = "| Total GPUs | Time (ms) |\n|---|---|\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a site of two tables, one of them an experiment's that the site has not measured."""
    made = tmp_path_factory.mktemp("fill")
    fill_site.write_rows(made, SCALING, COLUMNS, ROWS)
    fill_site.write_rows(made, "demo.other", [("n", "n", "factor"), ("t", "Time", "figure")], [{"n": 1, "t": 4}])
    present = made / "perfscribe" / "experiments" / "later" / "present.py"
    present.parent.mkdir(parents=True)
    present.write_text('TABLES = ("demo.later",)\n')
    return made


def one(root: Path, text: str, **options: bool) -> tuple[list[str], list[str]]:
    """The rows of the text's one table after filling, and what is told of it."""
    after, outcomes = fill_site.filled(root, text, **options)
    return [line for line in after.splitlines() if line.startswith("|")][2:], outcomes[0].told()


# --- what a cell gets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "time"),
    [
        (1, "12.3"),
        (2, "skipped (4 GPUs)"),
        (4, "3.00 (then oom)"),
        (16, "not counted"),
        (64, "not measured"),
        (8, r"failed (RuntimeError: x\|" + r"x\|" * 22 + "…)"),
    ],
)
def test_a_cell_is_a_figure_or_says_why(root: Path, ranks: int, time: str) -> None:
    [line], told = one(root, f"<!-- perfscribe: {SCALING} -->\n{HEAD}| {ranks} | |\n")
    assert line == f"| {ranks} | {time} |"
    is_figure = time[0].isdigit()
    assert told[0] == f"line 2: {SCALING} of site made, 1 cell filled"
    assert (f"  {time}: {ranks}, Time (ms)" in told) != is_figure
    assert ("  flagged when measured: host busy: 1, Time (ms)" in told) == (ranks == 1)


def test_predicted_figures_are_taken_where_they_are_asked_for_and_say_so(root: Path) -> None:
    [line], _ = one(root, f"<!-- perfscribe: {SCALING} origin=predicted -->\n{HEAD}| 2 | |\n")
    assert line == "| 2 | 5.50 (predicted) |"


def test_several_rows_that_fit_fill_nothing(root: Path) -> None:
    text = f"<!-- perfscribe: {SCALING} -->\n{HEAD}| 32 | |\n| 1 | |\n"
    lines, told = one(root, text)
    assert lines == ["| 32 | |", "| 1 | 12.3 |"]
    assert told[1] == (
        f"  2 rows of {SCALING} fit, model_name org/big-1b, small: say which above it, as in model_name=org/big-1b: "
        "32, Time (ms)"
    )
    for word in ("model_name=small", "model=small", "Model=SMALL", "model=sma"):
        assert one(root, text.replace(SCALING, f"{SCALING} {word}"))[0][0] == "| 32 | 2.00 |"


def test_a_level_in_a_row_is_not_overruled_by_the_comment(root: Path) -> None:
    lines, _ = one(root, f"<!-- perfscribe: {SCALING} ranks=1 -->\n{HEAD}| 1 | |\n| 16 | |\n")
    assert lines == ["| 1 | 12.3 |", "| 16 | not measured |"]


def test_the_same_figure_in_all_rows_that_fit_is_that(root: Path) -> None:
    [line], _ = one(root, f"<!-- perfscribe: {SCALING} -->\n| Total GPUs | Peak memory (GiB) |\n|---|---|\n| 32 | |\n")
    assert line == "| 32 | 1.00 |"


@pytest.mark.parametrize(
    ("unit", "figure"), [("GiB", "2.00"), ("GB", "2.15"), ("MB", "2150"), ("MiB", "2050"), ("kB", "2150000")]
)
def test_figures_are_told_in_the_headings_unit(root: Path, unit: str, figure: str) -> None:
    [line], told = one(root, f"| Total GPUs | Peak memory ({unit}) |\n|---|---|\n| 1 | |\n")
    assert line == f"| 1 | {figure} |"
    assert any(re.match(rf"  {unit}: (10|2)\^\d+ bytes$", text) for text in told)


def test_units() -> None:
    assert units.told("MB") == "MB: 10^6 bytes" and units.told("GiB") == "GiB: 2^30 bytes" and units.told("ms") == ""
    assert units.scale("ms", "s") == 1e-3 and units.scale("", "GB") == units.scale("GB", "") == 1
    assert units.in_heading("GPU Memory (GB, Default)") == "GB" and units.in_heading("Loss (final)") == ""
    assert units.without_unit("Peak (MiB)") == units.without_unit("peak  (GB)") != units.without_unit("peak (ms)")
    with pytest.raises(ValueError, match="GB cannot be told in ms"):
        units.scale("GB", "ms")


@pytest.mark.parametrize(
    ("text", "level", "same"),
    [
        ("1,024", "1024", True),
        ("10,000", "10000.0", True),
        ("1e3", "1000", True),
        (" FP32 ", "fp32", True),
        ("org / big", "org  / big", True),
        ("1,02", "102", False),
        ("16", "1", False),
        ("", "0", False),
    ],
)
def test_levels_are_the_same_as_numbers_and_words(text: str, level: str, same: bool) -> None:
    assert same_level(text, level) == same


def test_columns_of_one_title_are_taken_in_order(root: Path) -> None:
    head = "| Total GPUs | Time (ms) | IQR | Peak memory (GiB) | IQR |\n|---|---|---|---|---|\n"
    assert one(root, f"{head}| 1 | | | | |\n")[0] == ["| 1 | 12.3 | 7.00 | 2.00 | 8.00 |"]
    assert one(root, "| Total GPUs | IQR |\n|---|---|\n| 1 | |\n")[0] == ["| 1 | 7.00 |"]


# --- what stays -------------------------------------------------------------------------------------------------


def test_text_stays_unless_it_is_to_be_overwritten(root: Path) -> None:
    text = f"{HEAD}| 1 | 100 % (mine) |\n| 4 |\n"
    assert one(root, text)[0] == ["| 1 | 100 % (mine) |", "| 4 | 3.00 (then oom) |"]
    over, told = one(root, text, overwrite=True)
    assert over == ["| 1 | 12.3         |", "| 4 | 3.00 (then oom) |"] and told[0].endswith("2 cells filled")
    assert one(root, HEAD + "\n".join(over), overwrite=True) == (
        over,
        [f"line 1: {SCALING} of site made, nothing to fill", *told[1:]],
    )


def test_text_is_not_replaced_by_what_was_not_measured(root: Path) -> None:
    lines, told = one(root, f"<!-- perfscribe: {SCALING} -->\n{HEAD}| 64 | 5 |\n| 2 | 7 |\n", overwrite=True)
    assert lines == ["| 64 | 5 |", "| 2 | skipped (4 GPUs) |"] and "  not measured: 64, Time (ms)" in told


def test_columns_without_heading_or_of_ones_own_stay(root: Path) -> None:
    head = "| Total GPUs | Time (ms) |  | My remark |\n|---|---|---|---|\n"
    [line], told = one(root, f"<!-- perfscribe: {SCALING} -->\n{head}| 1 | | | |\n")
    assert line == "| 1 | 12.3 | | |" and "  columns left as they are: one without heading, My remark" in told


def test_a_heading_may_be_named_in_the_comment(root: Path) -> None:
    text = f'<!-- perfscribe: {SCALING} "My time"=time_ms Ranks=ranks -->\n| Ranks | My time |\n|---|---|\n| 1 | |\n'
    assert one(root, text)[0] == ["| 1 | 12.3 |"]


def test_a_table_of_no_site_is_left(root: Path) -> None:
    for text in ("| A | B |\n|---|---|\n| 1 | |\n", HEAD + "| 3 | |\n", "| Time (ms) | IQR |\n|---|---|\n| | |\n"):
        after, [outcome] = fill_site.filled(root, text)
        assert after == text and not outcome.failed
        assert outcome.told() == ["line 1: left as it is: its headings and rows are those of no table"]


# --- comments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("demo.scalign", "no experiment makes the table demo.scalign; is it demo.scaling?"),
        (f"{SCALING} site=nowhere", "there are no tables of site 'nowhere'; there are made"),
        (f"{SCALING} site=../../etc", "there are no tables of site '../../etc'; there are made"),
        (f"{SCALING} colour=red", f"colour is no factor of {SCALING}, which has {FACTORS}"),
        (f"{SCALING} model=tiny", f"no row of {SCALING} has model 'tiny'; there are org/big-1b, small"),
        (f"{SCALING} ranks=3", f"no row of {SCALING} has ranks '3'; there are 1, 2, 4, 8, 16, 32"),  # no part of 32
        (
            f'{SCALING} "Time (ms)"=nothing',
            f"Time (ms) is no factor of {SCALING}, which has {FACTORS}",
        ),
        (f"{SCALING} 'model=tiny", f"the comment above it has no closing quotation: expected {comments.FORM}"),
        (f"{SCALING} model=", f"the comment above it says 'model=': expected {comments.FORM}"),
        (f"{SCALING} more", f"the comment above it says 'more': expected {comments.FORM}"),
        ("../secret", f"the comment above it says '../secret': expected {comments.FORM}"),
        ("", f"the comment above it says '': expected {comments.FORM}"),
        ("demo.later", "site made has no table demo.later"),
        ("demo.other", "none of its headings is one of demo.other's"),
    ],
)
def test_a_comment_that_cannot_be_followed_is_one_line(root: Path, comment: str, fault: str) -> None:
    text = f"<!-- perfscribe: {comment} -->\n{HEAD}| 1 | |\n"
    after, [outcome] = fill_site.filled(root, text)
    assert after == text and outcome.failed
    assert outcome.told()[0] == "line 2: not filled" and len(outcome.told()) == 2
    assert outcome.told()[1] == f"  {fault}"


def test_a_comment_without_a_table_is_told(root: Path) -> None:
    _, outcomes = fill_site.filled(root, f"{HEAD}| 1 | |\n\n<!-- perfscribe: {SCALING} -->\n\n# End\n")
    assert outcomes[1].told() == ["line 5: a comment", "  there is no table below it"] and outcomes[1].failed


def test_comments_say_what_they_ask() -> None:
    asked = comments.read(Comment(0, 'demo.a site=h200x4 model=bloom labels="the answer"'))
    assert (asked.table, asked.site, asked.words) == ("demo.a", "h200x4", {"model": "bloom", "labels": "the answer"})
    assert comments.read(Comment(0, "site=x")) == comments.Asked(site="x") and comments.read(None) == comments.Asked()


def test_a_comment_may_take_another_site(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "results", tmp_path / "results")
    (tmp_path / "results" / "made").rename(tmp_path / "results" / "b")
    fill_site.write_rows(tmp_path, SCALING, COLUMNS, [row(1, 99)])
    after, _ = fill_site.filled(tmp_path, f"<!-- perfscribe: site=b -->\n{HEAD}| 1 | |\n\n{HEAD}| 1 | |\n")
    assert re.findall(r"\| 1 \| (\S+) \|", after) == ["12.3", "99.0"]


# --- a site's files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "content", "line"),
    [
        ("json", "{", r"fill: .*demo\.scaling\.json: cannot be read as JSON \(.*\)"),
        ("json", "[]", r"fill: .*demo\.scaling\.csv: cannot be read \(.*\)"),
        ("csv", "a,b\n1\n", r"fill: .*demo\.scaling\.csv: its columns are not those of demo\.scaling\.json"),
        ("csv", '"a\n', r"fill: .*demo\.scaling\.csv: (its columns .*|cannot be read \(.*\))"),
    ],
)
def test_results_that_cannot_be_read_are_one_line(
    root: Path, tmp_path: Path, suffix: str, content: str, line: str
) -> None:
    shutil.copytree(root / "results", tmp_path / "results")
    (tmp_path / "results" / "made" / "tables" / f"{SCALING}.{suffix}").write_text(content)
    page = tmp_path / "a.md"
    page.write_text(f"<!-- perfscribe: {SCALING} -->\n{HEAD}| 1 | |\n")
    after, [outcome] = fill_site.filled(tmp_path, page.read_text())
    assert after == page.read_text() and re.fullmatch(line, f"fill: {outcome.faults[0]}")


# --- the verb ---------------------------------------------------------------------------------------------------


def test_the_file_is_filled_and_what_was_done_is_told(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.md"
    page.write_bytes(f"{HEAD}| 1 | |".encode())
    assert verb.main(root, "made", [str(page), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{page}: 1 cell of 1 table filled, 1 with a figure\n")
    assert shown.endswith("-| 1 | |\n\\ No newline at end of file\n+| 1 | 12.3 |\n\\ No newline at end of file\n")
    assert page.read_bytes() == f"{HEAD}| 1 | |".encode()
    assert verb.main(root, "nowhere", [str(page), "--site", "made"]) == 0
    assert page.read_bytes() == f"{HEAD}| 1 | 12.3 |".encode()
    stamp = page.stat().st_mtime_ns
    capsys.readouterr()
    assert verb.main(root, "made", [str(page)]) == 0 and page.stat().st_mtime_ns == stamp
    assert capsys.readouterr().out == (
        f"{page}: 0 cells of 0 tables filled\nline 1: {SCALING} of site made, nothing to fill\n"
    )
    assert verb.main(root, "made", [str(page), "--dry-run"]) == 0 and "---" not in capsys.readouterr().out


def test_what_cannot_be_followed_sets_the_exit_status(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"{HEAD}| 1 | |\n\n<!-- perfscribe: demo.none -->\n{HEAD}| 1 | |\n")
    assert verb.main(root, "made", [str(page)]) == 1
    assert page.read_text().count("12.3") == 1


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfe|", r"fill: .*a\.md: not UTF-8 text \(byte 0\)"),
        (b"Text.\n", r"fill: .*a\.md: there is no table in it"),
        (b"", r"fill: .*a\.md: there is no table in it"),
        (None, r"fill: .*a\.md: No such file or directory"),
    ],
)
def test_files_that_cannot_be_filled_are_one_line(root: Path, tmp_path: Path, content: bytes | None, line: str) -> None:
    page = tmp_path / "a.md"
    if content is not None:
        page.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        verb.main(root, "made", [str(page)])
    assert re.fullmatch(line, str(caught.value)) and (content is None or page.read_bytes() == content)


@pytest.mark.parametrize("site", ["none", "", "..", "a/b", "made\n"])
def test_a_site_without_tables_is_one_line(root: Path, tmp_path: Path, site: str) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"{HEAD}| 1 | |\n")
    with pytest.raises(
        ValueError, match=rf"^fill: there are no tables of site {re.escape(repr(site))}; there are made$"
    ):
        verb.main(root, "made", [str(page), "--site", site])


def test_a_table_of_a_site_that_is_not_there_keeps_no_other_from_its_figures(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"{HEAD}| 1 | |\n\n<!-- perfscribe: {SCALING} site=made -->\n{HEAD}| 1 | |\n")
    assert verb.main(root, "local", [str(page)]) == 0
    lines = page.read_text().splitlines()
    assert (lines[2], lines[-1]) == ("| 1 | |", "| 1 | 12.3 |")


def test_what_was_saved_meanwhile_is_kept(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"<!-- perfscribe: {SCALING} -->\n{HEAD}| 1 | |\n")
    fill = verb.Filler.fill

    def beside_an_editor(self: verb.Filler) -> list[Outcome]:
        page.write_text("saved meanwhile\n")
        return fill(self)

    monkeypatch.setattr(verb.Filler, "fill", beside_an_editor)
    with pytest.raises(ValueError, match=r"changed while it was read; run it again$"):
        verb.main(root, "made", [str(page)])
    assert page.read_text() == "saved meanwhile\n"


@pytest.mark.parametrize("arguments", [[], ["a.md", "b.md"], ["a.md", "--sight", "x"], ["a.md", "--site"]])
def test_a_wrong_command_line_is_one_line(root: Path, arguments: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^fill: [^\n]+$"):
        verb.main(root, "made", arguments)


def test_a_file_that_cannot_be_written_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"{HEAD}| 1 | |\n")

    def refuse(path: Path, content: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(rewriting, "replace_content", refuse)
    with pytest.raises(ValueError, match=r"^fill: .*a\.md: cannot be written \(Permission denied\)$"):
        verb.main(root, "made", [str(page)])
    assert page.read_text() == f"{HEAD}| 1 | |\n" and capsys.readouterr().out == ""


def test_a_byte_order_mark_stays_and_a_pipe_is_no_file(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "notes.md"
    page.write_bytes(b"\xef\xbb\xbf" + b"no table\n")
    with pytest.raises(ValueError, match="there is no table in it"):
        verb.main(root, "made", [str(page)])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"^fill: .*pipe: a pipe$"):
        verb.main(root, "made", [str(tmp_path / "pipe")])


def test_a_folder_is_no_file(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^fill: .*: Is a directory$"):
        verb.main(root, "made", [str(tmp_path)])


# --- the page ---------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "fill.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    [found] = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_pages_example_is_what_the_command_does(tmp_path: Path) -> None:
    page = tmp_path / "notes.md"
    page.write_text(block("markdown file=notes.md"))
    command = [sys.executable, "-m", "perfscribe.cli", "fill", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert page.read_text() == block("markdown result=notes.md")
    assert done.stdout.replace(str(page), "notes.md") == block("text")


def test_the_pages_entry_is_the_lists_own() -> None:
    listed = (ROOT / "perfscribe" / "filling" / "homework.yaml").read_text(encoding="utf-8")
    shown = [re.sub(r" {2,}#.*", "", line) for line in block("yaml").splitlines()]
    missing = [line for line in shown if line.strip() not in listed and "where: {device" not in line]
    assert missing == ["    prefer:"] or missing == []


def test_without_the_parser_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "markdown_it.py").write_text("raise ModuleNotFoundError('no', name='markdown_it')\n")
    code = "import sys; from perfscribe import cli; sys.exit(cli.main(['fill', 'README.md', '--dry-run']))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (1, "run: fill: the Python package markdown-it is missing\n")
