"""Chapters over committed sites: whole and short sentences whatever is missing, every name checked."""

import re
import shutil
from pathlib import Path

import pytest
from chapter_sites import SITES, Lacking, Mutilated, Newer, Odd, Shaken, keys, problem, site

from perfscribe.base import chapters, registry
from perfscribe.report import templates
from perfscribe.report.page import Problem
from perfscribe.report.quantities import PRIVATE
from perfscribe.report.rows import known_tables

# Marks of a half sentence or of a number that leaked.
BROKEN = re.compile(
    r"\b(nan|None|undefined)\b|\{[{%]|  +(?=\S)| [,.;:]( |$)|\( *\)|,,|\.\.(?!\.)|of of|: *$|, *$"
    r"|-ms|- ms|- %|- GB| - [a-z]"
)


# Committed sites have the levels of these.
DEFAULT = [(chapter, key) for chapter, key in keys() if chapter in registry.CHAPTERS]


@pytest.mark.parametrize(("chapter", "key"), [*keys()])
def test_no_half_sentence_whatever_rows_are_missing_and_figures_say(chapter: str, key: str) -> None:
    for name in SITES:
        newer = problem(chapter, key, Newer(name))
        assert_whole(newer, f"{name} newer")
        for drawn in (newer, problem(chapter, key, site(name))):
            assert_short(drawn, 160 if key in LONG else 110)
        for kind in (Mutilated, Shaken):
            assert_whole(problem(chapter, key, kind(name, f"{name} {key}")), f"{name} {kind.__name__}")


@pytest.mark.parametrize("chapter", chapters.names())
def test_a_table_that_a_run_left_out_breaks_no_page(chapter: str) -> None:
    of, common = chapters.read(chapter), chapters.load(chapters.ROOT / chapters.COMMON)["tables"].values()
    for key in (key for key in of.problems if of.file(key).is_file()):
        named = {
            table if isinstance(table, str) else table["id"]
            for table in of.source(key).front.get("tables", {}).values()
        }
        for table in sorted({*named, *common}):
            assert_whole(problem(chapter, key, Lacking("h200x4", table)), f"{key} without {table}")


def words(text: str) -> int:
    """Words and numbers, without signs between them."""
    return len(re.findall(r"\S*[^\W_]\S*", text.replace("**", "")))


# Derivations and calculations, which the handout asks for.
LONG = ("communication_accounting", "memory_profiling", "ddp_bucketed_benchmarking", "fsdp_tp_calcs")


def assert_short(drawn: Problem, most: int) -> None:
    """Its sentences have at most 35 words, its answers `most`."""
    for text in drawn.texts:
        answer = re.sub(r"\]\([^)]*\)|`[^`]*`", "]", text.markdown())
        assert not re.search(r"\b(Answered|Confirmed|Contradicted|Supported|Refuted|nan|None)\b", answer)
        longest = max(re.split(r"(?<=[.:;?!\]])\s+(?=[\w(])", answer), key=words)
        assert words(longest) <= 35 and words(answer) <= most, (longest, answer)


def assert_whole(drawn: Problem, where: str) -> None:
    """No line of the problem holds a private mark or half a sentence."""
    pictures = {picture.figure for picture in drawn.pictures}
    for line in [*drawn.markdown(pictures, True).splitlines(), drawn.finding, drawn.remarks]:
        assert not PRIVATE.search(line), (where, line)
        plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "", line))
        assert line.startswith("|") or not (broken := BROKEN.search(plain)), (where, broken, line)


@pytest.mark.parametrize(("chapter", "key"), [*keys()])
def test_a_site_with_levels_of_its_own_has_them_in_its_tables(chapter: str, key: str) -> None:
    odd, drawn = problem(chapter, key, Odd()), problem(chapter, key, site("h200x4"))
    assert_whole(odd, "levels of its own")
    for level in LEVELS.get(key, ()) if (chapter, key) in DEFAULT else ():
        assert f"| {level} |" in odd.markdown({}) and f"| {level} |" not in drawn.markdown({})


LEVELS = {
    "pytorch_attention": ("2048", "16384 | 96 | OOM", "16384 | 64 | failed", "16384 | 32 | timeout"),
    "nsys_profile": ("small | 2048",),
    "benchmarking_script": ("1536",),
    "memory_profiling": ("640",),
    "flash_benchmarking": ("1536 | 64 | bf16",),
    "distributed_communication_single_node": ("300MB",),
    "naive_ddp_benchmarking": ("25", "overlap_bucketed (yours)"),
    "multi_gpu": ("3",),
    "custom_multi_gpu": ("3",),
}


# Text of a chapter, the author's mistake in its place, and a part of the error message.
MISTAKES = [
    ("id: cs336.pytorch_attention", "id: cs336.pytorch_atention", "did you mean 'cs336.pytorch_attention'?"),
    ("where: {dtype: fp32}", "filter: {dtype: fp32}", "unknown key tables.attention.filter"),
    ("where: {dtype: fp32}", "where: {dtpe: fp32}", "did you mean 'dtype'?"),
    ("part: one device", "parts: one device", "unknown key parts"),
    ("let: |", "let:", "expected `let: |`"),
    ("before = widest[-2]", "before: widest[-2]", "expected `name = expression`"),
    ("before = widest[-2]", "before = widest[-2", "expected"),
    ("before = widest[-2]", "before = '%(a)s' | format(b=1)", "KeyError: 'a'"),
    ("mostly_softmax = part ", "mostly_softmax = parts ", "unknown name 'parts'"),
    ("{% reason mostly_softmax %}", "{% reason true %}", "needs a condition"),
    ("{% reason mostly_softmax %}", "{% reason mostly_sftmax %}", "did you mean 'mostly_softmax'?"),
    ("{% reason launches_dominate %}", "{% reasn launches_dominate %}", "unknown tag 'reasn'"),
    ("| {{ row.forward_ms }}", "| {{ row.forwrd_ms }}", "did you mean 'forward_ms'?"),
    ("| {{ row.forward_ms }} |", "| {{ row.forward_ms }} | 1 |", "7 cells under 6 headings"),
    ("| whole }}", "| wholly }}", "did you mean 'whole'?"),
    ("({{ part }} %)", "({{ parts }} %)", "did you mean 'part'?"),
    ("({{ part }} %)", "({{ attention._rows }} %)", "unknown column or attribute"),
    ("attention.grid(", "attention.gird(", "did you mean 'grid'?"),
    ("grid(head_dim=", "grid(headdim=", "did you mean 'head_dim'?"),
    ("seq_len=homework.seq_len", "seq_len=homework.seqlen", "did you mean 'seq_len'?"),
    ("{{ memory }} times", "{{ memory } times", "unexpected '}'"),
    ("longer = largest.seq_len /", "longer = largest.dtype /", "unsupported"),
    ("  held: cs336.attention_accounting", "  held: [cs336.attention_accounting", "expected"),
    ("### Problem (pytorch_attention)", "Problem (pytorch_attention)", "no heading"),
]


@pytest.mark.parametrize(("right", "wrong", "told"), MISTAKES)
def test_a_mistake_is_one_line_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, told: str
) -> None:
    text = (chapters.ROOT / "cs336" / "pytorch_attention.md").read_text(encoding="utf-8")
    said = mistaken(tmp_path, monkeypatch, "cs336/pytorch_attention.md", right, wrong)
    assert told in said
    if told != "no heading":
        place = re.match(r"chapters/cs336/pytorch_attention.md:(\d+): ", said)
        line = text[: text.index(right)].count("\n") + 1
        assert place and abs(int(place[1]) - line) <= (3 if "cells" in told or right.startswith("  held") else 0), said


def test_a_mistake_in_the_index_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = mistaken(tmp_path, monkeypatch, "cs336/2025.yaml", "homework:", "homwork:")
    assert re.match(r"chapters/cs336/2025\.yaml:\d+: .*unknown key homwork", said)


def mistaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, right: str, wrong: str) -> str:
    """The error of a chapter in which this file has the wrong text instead of the right one."""
    known_tables()  # of the experiments that are there
    copy = tmp_path / "chapters"
    shutil.copytree(chapters.ROOT, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert right in text
    (copy / file).write_text(text.replace(right, wrong, 1), encoding="utf-8")
    monkeypatch.setattr(chapters, "ROOT", copy)
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    chapters.names.cache_clear()
    templates.environment.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            problem("cs336", "pytorch_attention", site("h200x4"))
    finally:
        monkeypatch.undo()
        chapters.names.cache_clear()
        templates.environment.cache_clear()
    return str(error.value)
