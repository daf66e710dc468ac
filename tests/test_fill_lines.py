"""Where tables lie in the lines of a file, and that filling changes their empty cells and not a byte more."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import fill_site
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscribe.filling import document, rewriting

ID = "demo.times"
COLUMNS = [("setup", "Setup", "factor"), ("n", "n", "factor"), ("time_ms", "Time (ms)", "figure")]
ROWS = [{"setup": "a", "n": 1, "time_ms": 1.5}, {"setup": "b c", "n": 2, "time_ms": 2.5}]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose site measured one small table."""
    made = tmp_path_factory.mktemp("lines")
    fill_site.write_rows(made, ID, COLUMNS, ROWS)
    return made


def table(text: str) -> document.Table:
    [found] = document.parse(text).tables
    return found


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\r\nb\rc\n\n", "\r\r\n", "\ufeffa\n", "a\u2028b\x0bc\x0c\nd"])
def test_lines_are_the_file(text: str) -> None:
    assert "".join(document.parse(text).lines) == text


@pytest.mark.parametrize(
    ("row", "texts", "closed"),
    [
        ("| a | b |", ["a", "b"], True),
        ("| a | b", ["a", "b"], False),
        ("a | b |", ["a", "b"], True),
        ("a | b", ["a", "b"], False),
        ("| a |", ["a", ""], True),
        ("| a", ["a", ""], False),
        ("a |", ["a", ""], True),
        ("||  |", ["", ""], True),
        ("|\t|\t\t|", ["", ""], True),
        ("| a | b | c | d |", ["a", "b"], True),
        (r"| a \| b | c |", ["a | b", "c"], True),
        (r"| a | b \|", ["a", "b |"], False),
        ("| `a` | **b** *c* |", ["a", "b c"], True),
        ("  | a | b |  ", ["a", "b"], True),
        ("| <br> | ![](b.png) |", ["<br>", "![](b.png)"], True),
        ("| &nbsp; | <!-- b --> |", ["&nbsp;", "<!-- b -->"], True),
    ],
)
def test_cells_of_a_row(row: str, texts: list[str], closed: bool) -> None:
    found = table(f"| x | y |\n|---|---|\n{row}\n")
    [one] = found.rows
    assert list(one.texts) == texts and one.closed == closed and not found.unread
    line = f"{row}\n"
    for (left, right), plain in zip(one.spans, texts, strict=False):
        assert line[left:right].strip().replace(r"\|", "|").replace("`", "").replace("*", "") == plain


@pytest.mark.parametrize(
    "text",
    [
        "```\n| x |\n|---|\n| a |\n```\n",
        "~~~text\n| x |\n|---|\n| a |\n~~~\n",
        "    | x |\n    |---|\n    | a |\n",
        "| x | y |\n|---|\n| a | b |\n",
        "| x |\n\n|---|\n",
        "<!--\n| x |\n|---|\n| a |\n-->\n",
        "",
    ],
)
def test_what_is_no_table(text: str) -> None:
    assert document.parse(text).tables == []


def test_a_line_of_text_below_a_table_is_no_row() -> None:
    found = table("| x |\n|---|\n| a |\n_Note_: of it.\n")
    assert [row.texts for row in found.rows] == [("a",)] and found.unread == ()


def test_what_looks_like_a_table_and_is_none_is_told(root: Path) -> None:
    text = "- x\n\n  | x |\n  |---|\n  | a |\n| b |\n\nText | with | bars.\n\n| x | y |\n\n|---|---|\n\n| a | b |\n"
    found = document.parse(text)
    assert [row.texts for row in found.tables[0].rows] == [("a",)] and found.loose == [5, 9]
    after, outcomes = fill_site.filled(root, text)
    assert after == text and [one.line for one in outcomes if "looks like a table" in one.what] == [6, 10]
    assert not any(one.failed for one in outcomes)


def test_headings_above_the_nearest_first() -> None:
    text = "# A\n\n## B\n\n### C `d`\n\n## **E**\n\n```\n# no\n```\n\n| x |\n|---|\n| a |\n"
    assert table(text).above == ("E", "A")


def test_a_comment_is_for_the_next_table_of_its_section() -> None:
    one = "| x |\n|---|\n| a |\n\n"
    text = f"<!-- perfscribe: demo.a -->\nText.\n\n{one}{one}<!-- perfscribe: demo.b -->\n# Next\n\n{one}"
    text += "- item\n  <!-- perfscribe:\n  demo.c\n  -->\n  | x |\n  |---|\n  | a |\n\n<!-- perfscribe demo.d -->\n"
    found = document.parse(text)
    assert [one.comment and one.comment.text for one in found.tables] == ["demo.a", None, None, "demo.c"]
    assert [(one.line, one.text) for one in found.stray] == [(11, "demo.b"), (26, None)]


@pytest.mark.parametrize(
    "above",
    [
        "Results: <!-- perfscribe: demo.a -->\n\n",
        "## Results <!-- perfscribe: demo.a -->\n\n",
        "- an item <!-- perfscribe: demo.a -->\n\n",
    ],
)
def test_a_comment_at_the_end_of_a_line_is_one_too(above: str) -> None:
    assert table(f"{above}| x |\n|---|\n| a |\n").comment == document.Comment(0, "demo.a")


@pytest.mark.parametrize(
    "text",
    [
        "Write `<!-- perfscribe: demo.a -->` above it.\n\n| x |\n|---|\n| a |\n",
        "| x <!-- perfscribe: demo.a --> |\n|---|\n| a <!-- perfscribe: demo.a --> |\n",
    ],
)
def test_code_and_cells_hold_no_comments(text: str) -> None:
    found = document.parse(text)
    assert [one.comment for one in found.tables] == [None] and found.stray == []


# --- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "filled"),
    [
        ("| a |  |  |\n", "| a | 1 | 1.50 |\n"),
        ("| a |    |           |\n", "| a | 1  | 1.50      |\n"),
        ("|a|||\n", "|a| 1 | 1.50 |\n"),
        ("| a |\t|\t\t|\n", "| a | 1 | 1.50 |\n"),
        ("| a |\n", "| a | 1 | 1.50 |\n"),
        ("| a\n", "| a | 1 | 1.50 |\n"),
        ("| a   ", "| a   | 1 | 1.50 |"),
        ("a |  | \r\n", "a | 1 | 1.50 | \r\n"),
        ("   | a | 1\t \n", "   | a | 1\t | 1.50 |\n"),
        ("| a |  |  |   \n", "| a | 1 | 1.50 |   \n"),
        ("| a |  |  | extra |\n", "| a | 1 | 1.50 | extra |\n"),
        ("| a |  | 9 \n", "| a | 1 | 9 |\n"),
        ("| **a** |  | by hand |\n", "| **a** | 1 | by hand |\n"),
        ("| b  c |  | x \\| y |\n", "| b  c | 2 | x \\| y |\n"),
        ("| a | 1 | 9 |\n", "| a | 1 | 9 |\n"),
        ("| a | 1 | 9\n", "| a | 1 | 9\n"),
    ],
)
def test_a_row_is_filled(root: Path, row: str, filled: str) -> None:
    head = "| Setup | n | Time (ms) |\n|---|---|---|\n"
    assert fill_site.filled(root, head + row)[0] == head + filled


@pytest.mark.parametrize(
    ("mark", "cell"),
    [(":---", "| 1.50     |"), (":---:", "|   1.50   |"), ("---:", "|     1.50 |"), ("---", "| 1.50     |")],
)
def test_a_cell_keeps_its_width_and_side(root: Path, mark: str, cell: str) -> None:
    text, _ = fill_site.filled(root, f"| Setup | Time (ms) |\n|---|{mark}|\n| a |          |\n")
    assert text.splitlines()[2] == f"| a {cell}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("before", ["", "> ", "> > ", "   ", "  > "])
def test_quotations_lists_and_line_ends(root: Path, before: str, end: str) -> None:
    lines = ["| Setup | Time (ms) |", "|---|---|", "| a |  |", "b c |"]
    text = "\ufeff" + "".join(f"{before}{line}{end}" for line in lines) + end + "- x" + end
    expected = text.replace("| a |  |", "| a | 1.50 |").replace("b c |", "b c | 2.50 |")
    assert fill_site.filled(root, text)[0] == expected
    if not before:
        listed = text.replace("\ufeff", f"1. Fill:{end}").replace("|---", "   |---")
        listed = listed.replace("| Setup", "   | Setup").replace("| a", "\t| a").replace("b c", "    b c")
        assert "\t| a | 1.50 |" in fill_site.filled(root, listed)[0]


def test_other_tables_and_code_stay(root: Path) -> None:
    empty = "| Setup | Time (ms) |\n|---|---|\n| a |  |\n"
    other = "| Name | Time (ms) |\n|---|---|\n| a |  |\n"
    indented = "".join(f"    {line}\n" for line in empty.splitlines())
    text = f"```\n{empty}```\n\n{other}\n{empty}\n{indented}\n<!-- perfscribe: none -->\n{empty}"
    filled, outcomes = fill_site.filled(root, text)
    assert filled.count("1.50") == 1 and filled.replace("1.50 ", " ") == text
    assert [one.what.split(":")[0] for one in outcomes] == ["left as it is", f"{ID} of site made", "left as it is"]


CELL = st.text(st.sampled_from("ab12 \t`*_\\|<>&;é→\u00a0-"), max_size=6).map(
    lambda text: text.replace("\\", "").replace("|", "\\|").strip()
)
NAME = st.sampled_from(["a", "b c", " a ", "**b c**", "`a`", "z", ""])
ROW = st.tuples(
    st.sampled_from(["", "|", "  |", "| "]), NAME, st.lists(CELL, max_size=4), st.sampled_from(["", "|", " | ", "|  "])
).map(lambda parts: parts[0] + "|".join([parts[1], *parts[2]]) + parts[3])
BLOCK = st.one_of(
    st.lists(ROW, max_size=5).map(lambda rows: ["| Setup | n | Time (ms) |", ":-:|---|--:|", *rows]),
    st.lists(ROW, max_size=3).map(lambda rows: ["| Setup | Other |", "|---|---|", *rows]),
    st.lists(ROW, max_size=3).map(lambda rows: ["```", "| Setup | n |", "|---|---|", *rows, "```"]),
    st.sampled_from([["Text."], ["# Head"], ["<!-- perfscribe: demo.times -->"], ["- x", "  y"], ["> q"]]),
)


@settings(max_examples=150, deadline=None)
@given(blocks=st.lists(BLOCK, max_size=4), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), bom=st.booleans())
def test_only_empty_cells_of_matched_tables_change(
    root: Path, blocks: list[list[str]], end: str, last: bool, bom: bool
) -> None:
    text = "\ufeff" * bom + (end + end).join(end.join(block) for block in blocks) + end * last
    after, outcomes = fill_site.filled(root, text)
    old, new = document.parse(text), document.parse(after)
    known = {one.line - 1 for one in outcomes if one.known}
    rows = {row.line: row for one in old.tables if one.line in known for row in one.rows}
    assert len(old.lines) == len(new.lines) and len(old.tables) == len(new.tables)
    for number, (before, now) in enumerate(zip(old.lines, new.lines, strict=True)):
        assert number in rows or before == now
    for one, other in zip(old.tables, new.tables, strict=True):
        for row, again in zip(one.rows, other.rows, strict=True):
            assert all(not had or had == has for had, has in zip(row.texts, again.texts, strict=True))
            for (left, right), (start, stop) in zip(row.spans, again.spans, strict=False):
                had = old.lines[row.line][left:right].rstrip("\r\n")
                assert not had.strip() or had.rstrip() == new.lines[row.line][start:stop].rstrip()
    assert fill_site.filled(root, after)[0] == after


# --- the file ---------------------------------------------------------------------------------------------------


def test_mode_and_link_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.md", tmp_path / "folder" / "link.md"
    link.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("../real.md")
    rewriting.replace_content(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new" and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["folder", "real.md"] and os.listdir(link.parent) == ["link.md"]


def test_nothing_is_lost_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.md"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        rewriting.replace_content(path, b"new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.md"]
