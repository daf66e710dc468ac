"""Chapters over committed sites: tables as they were, whole sentences whatever is missing, every name checked."""

import re
from functools import cache
from pathlib import Path

import pytest
from chapter_sites import SITES, Mutilated, keys, problem, site

from perfscribe.report.quantities import PRIVATE

FROZEN = Path(__file__).with_name("frozen")
# Tables that were changed on purpose, with the reason.
INTENDED: dict[str, str] = {}
# Marks of a half sentence or of a number that leaked.
BROKEN = re.compile(
    r"\b(nan|None|undefined)\b|\{[{%]|  +(?=\S)| [,.;:]( |$)|\( *\)|,,|\.\.(?!\.)|of of|: *$|, *$"
    r"|-ms|- ms|- %|- GB| - [a-z]"
)


@cache
def frozen(name: str) -> dict[str, list[str]]:
    """Lines of the tables of each problem, by its heading."""
    parts = re.split(r"(?m)^### ", (FROZEN / f"{name}.md").read_text(encoding="utf-8"))[1:]
    return {part.split("\n", 1)[0]: [line for line in part.splitlines() if line.startswith("|")] for part in parts}


@pytest.mark.parametrize(("chapter", "key"), [*keys()])
def test_tables_are_those_of_the_frozen_reports(chapter: str, key: str) -> None:
    if key in INTENDED:
        pytest.skip(INTENDED[key])
    for name in SITES:
        drawn = problem(chapter, key, site(name))
        lines = [line for line in drawn.markdown({}).splitlines() if line.startswith("|")]
        assert lines == frozen(name).get(drawn.heading, []), name


@pytest.mark.parametrize(("chapter", "key"), [*keys()])
def test_no_half_sentence_whatever_rows_are_missing(chapter: str, key: str) -> None:
    for name in SITES:
        for seed in range(8):
            drawn = problem(chapter, key, Mutilated(name, f"{name} {seed} {key}"))
            pictures = {picture.figure for picture in drawn.pictures}
            texts = [*drawn.markdown(pictures, True).splitlines(), drawn.finding, drawn.remarks]
            assert not PRIVATE.search("\n".join(texts))
            for line in texts:
                plain = re.sub(r"\]\([^)]*\)|`[^`]*`", "", line)
                assert line.startswith("|") or not (broken := BROKEN.search(plain)), (name, seed, broken, line)
