"""Two editions of a course: levels that an index adds to the plan, its names of levels, both in one report."""

import re
from typing import Any

import pytest
from chapter_sites import problem, site

from perfscribe import config
from perfscribe.base import chapters, registry
from perfscribe.plan import plan
from perfscribe.report import handin
from perfscribe.report.page import Problem

EDITIONS = [chapter for chapter in map(chapters.read, chapters.names()) if chapter.levels]
BOTH = ["cs336", "cs336-2026"]


def levels(experiment: str, *factors: str, **raw: Any) -> set[tuple[Any, ...]]:
    """The levels of these factors in the planned cells."""
    cells = plan.planned_cells(raw, experiment, "gpu")
    return {tuple(cell.factors[name] for name in factors) for cell in cells if not cell.skip}


def test_an_edition_measures_its_own_levels_and_two_measure_those_of_both() -> None:
    former = {("2.7B", 128), ("2.7B", 256), ("2.7B", 512), ("small", 128), ("small", 256), ("small", 512)}
    today = {("2.7B", 128), ("2.7B", 2048)}
    factors = ("memory_profiling", "size", "seq_len")
    assert levels(*factors, chapters=["cs336"]) == former
    assert levels(*factors, chapters=["cs336-2026"]) == today
    assert levels(*factors, chapters=BOTH) == former | today  # not every size at every length
    own = {"memory_profiling": {"seq_len": [64]}}
    assert levels(*factors, chapters=["cs336-2026"], experiments=own) == {("2.7B", 64)}


@pytest.mark.parametrize("preset", config.PRESETS)
@pytest.mark.parametrize("chapter", EDITIONS, ids=lambda chapter: chapter.name)
def test_levels_of_an_index_are_what_their_keys_take(chapter: chapters.Chapter, preset: str) -> None:
    config.resolve({}, preset, chapter.levels)
    for experiment in chapter.levels:
        assert chapter.tables() & set(registry.shown(experiment).tables), experiment


def test_a_size_has_the_editions_name_in_its_chapter() -> None:
    former, today = (problem(chapter, "benchmarking_script", site("h200x4")).markdown({}) for chapter in BOTH)
    row = re.search(r"\| 2.7B \| forward (\|.*)", former)
    assert row and f"| xl | forward {row[1]}" in today
    assert "| xl | forward" in former and today.count("| xl | forward") == 1  # 2025's xl is not among this edition's
    for key in chapters.read("cs336-2026").problems:
        assert "2.7B" not in problem("cs336-2026", key, site("h200x2")).markdown({}), key


def test_a_time_of_compiling_is_of_the_model_that_it_names() -> None:
    former, today = (problem(chapter, "torch_compile", site("h200x2")).markdown({}) for chapter in BOTH)
    compiling = re.search(r"Compiling takes .* 2\.7B.*", former)
    assert compiling and compiling[0].replace("2.7B", "xl") in today


def test_a_caption_says_what_its_figure_calls_a_size() -> None:
    renamed = ". In the figure xl is named 2.7B and another model is named xl*"
    figures = {"cs336.nsys_forward", "cs336.attention_by_length"}
    former, today = (problem(chapter, "nsys_profile", site("h200x4")).markdown(figures) for chapter in BOTH)
    assert renamed in today and renamed not in former
    assert "In the figure" not in problem("cs336-2026", "pytorch_attention", site("h200x4")).markdown(figures)


def test_headings_links_and_pages_of_two_editions_differ() -> None:
    notes: dict[str, dict[str, str]] = {
        "cs336": {},
        "cs336-2026": {"Problem (pytorch_attention)": "A note for the second."},
    }
    summary = {"machines": [], "software": {}, "first_day": "", "last_day": "", "commits": [], "cells": {}}
    summary |= {"nodes": 0, "disturbed": 0}
    pages = handin.write(site("h200x4"), summary, {}, notes)
    text = pages["report.md"]
    assert "For CS336 assignment 2 (systems) of 2025 and 2026." in text
    headings = re.findall(r"(?m)^### (.+)", text)
    assert len(headings) == len({*headings}) and "Problem (nsys_profile), 2026" in headings
    for name in re.findall(r"\]\((details/[^)]*)\)", text):
        assert name in pages, name
    assert "A note for the second." in text.split("### Problem (pytorch_attention), 2026\n")[1].split("\n### ")[0]


def test_a_second_edition_s_problems_link_to_each_other() -> None:
    second = Problem(chapters.read("cs336"), "minimal_ddp_flat_benchmarking", site("h200x4"), edition="2025")
    assert "([table](#problem-naive_ddp_benchmarking-2025)" in second.markdown({})
