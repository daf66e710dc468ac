"""The hand-in of every committed site: the course's problems, headers and limits."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from workspace import ROOT

from perfscribe.base import registry
from perfscribe.report import handin
from perfscribe.report.site import Site
from perfscribe.verbs.fill import verb

SITES = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))
MOST_WORDS, MOST_FIGURES = 60, 6  # of an answer
MOST_FIRST = 62


@cache
def text_of(site: str) -> str:
    return (ROOT / "report" / site / "report.md").read_text(encoding="utf-8")


def problems(site: str) -> dict[str, str]:
    """Each problem's text by its heading."""
    parts = re.split(r"(?m)^### ", text_of(site).split("\n## Not measured here")[0])[1:]
    return {part.split("\n", 1)[0]: re.split(r"(?m)^## ", part.split("\n", 1)[1])[0] for part in parts}


@pytest.mark.parametrize("site", SITES)
def test_problems_and_headers_are_the_courses_and_the_first_page_is_short(site: str) -> None:
    chapters = json.loads((ROOT / "results" / site / "plan" / "report.json").read_text())["chapters"]
    wanted = [problem.heading for *_, of in handin.chapters(chapters) for problem in of]
    assert list(problems(site)) == wanted
    linked = re.findall(r"\]\(#([^)]*)\)", text_of(site))
    assert set(linked) <= {handin.anchor(heading) for heading in [*wanted, "Not measured here"]}
    beside = re.findall(r"\]\(((?:details/|figures/|appendix)[^)]*)\)", text_of(site))
    assert beside and all((ROOT / "report" / site / name).is_file() for name in beside)
    known = yaml.safe_load(Path(__file__).with_name("handin_headers.yaml").read_text(encoding="utf-8"))
    for heading, text in problems(site).items():
        for header in re.findall(r"(?m)^(\|.*\|)\n\| ?-", text):
            assert re.sub(r" *(?<!\\)\| *", " | ", header).strip() in known[heading], heading
    first = re.split(r"(?m)^## (?:CS336 a|Polaris h|FSDP w)", text_of(site))[0]
    assert len(first.splitlines()) <= MOST_FIRST
    for line in re.findall(r"(?m)^\d\. (.*)$", first):
        assert len(line.split(" [")[0].split()) <= 25, line


UNITS = "GB|GiB|MB|MiB|s|ms|μs|%|×|x|TFLOP/s|GB/s|samp/s|samples/s|samples"
FIGURE = rf"([-+]?[\d.,]+( ± [\d.,]+)?( - [\d.,]+)?( ?({UNITS}))?|100% \(baseline\))[†‡]{{0,2}}"
RANKS = r"\d+-\d+"
COUNTED = "cells?|GPUs?|all-reduces|rows|MB|process(?:es)?|ranks?|nodes?"
MOST_OF_A_CELL = 5  # words; a cell of more is a sentence


@pytest.mark.parametrize("site", SITES)
def test_a_figure_is_written_as_the_specification_says(site: str) -> None:
    for known in verb.known(ROOT, site):
        for row in known.table.rows:
            assert len(row) == len(known.table.header) <= 10 and all(cell.text for cell in row), known.name
            texts = [cell.text for cell in row if cell.able]
            figures = [text for text in texts if re.match(r"[-+±]?[\d.]", text) and len(text.split()) <= MOST_OF_A_CELL]
            assert not [text for text in figures if not re.fullmatch(f"{FIGURE}|{RANKS}", text)], known.name
            assert not [text for text in texts if re.search(r"\b(nan|inf|None|skipped|unsupported|not_run)\b", text)]


@pytest.mark.parametrize("site", SITES)
def test_answers_are_short(site: str) -> None:
    assert not re.search(r"\b(Answered|Confirmed|Contradicted|Supported|Refuted|nan|None)\b", text_of(site))
    folder = ROOT / "results" / site
    gpus = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["gpus"]
    tables = Site(site, folder / "tables", "cuda" if gpus else "cpu")
    for kind in (kind for *_, kinds in handin.chapters(registry.CHAPTERS) for kind in kinds):
        problem = kind(tables)
        texts = [table.title + table.setup + " ".join(table.header) for table in problem.made]
        texts += [cell.text for table in problem.made for row in table.rows for cell in row if not cell.able]
        levels = set(re.findall(r"\d(?:[\d,]*\d)?", " ".join(texts)))
        for answer in problem.answered if problem.measured else []:
            text = answer.text()
            words = re.sub(r"\]\([^)]*\)", "]", text).split()
            # The figures that it quotes: no levels, counts, formulas or names.
            rest = re.sub(r"`[^`]*`|\]\([^)]*\)|\S+(?: · \S+)+|\S+ ?= ?\S+|arXiv:\S+|\b\d-\d\b|\b00\d:", " ", text)
            rest = re.sub(rf"\b[\d.]+ (?:{COUNTED})\b", " ", rest)
            quoted = re.findall(r"(?<![\w.,/-])-?\d(?:[\d,]*\d)?(?:\.\d+)?(?!\w)", rest)
            most = MOST_FIGURES + sum(one in levels for one in quoted)
            assert len(words) <= MOST_WORDS and len(quoted) <= most, (problem.name, text)


@pytest.mark.parametrize("site", SITES)
def test_each_spread_says_what_it_is_of(site: str) -> None:
    for known in verb.known(ROOT, site):
        texts = [*known.table.notes, *(cell.text for cell in known.table.cells)]
        wide = [text for text in texts if " ± " in text]
        told = "± (half (IQR|the range|of its)|std)( of|[^;]* over) [\\da]"  # of how many
        assert not [one for one in wide if not re.search(told, known.table.setup + one)], known.name


@pytest.mark.parametrize("site", SITES)
def test_every_page_can_be_reached(site: str) -> None:
    folder = ROOT / "results" / site
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    tables = Site(site, folder / "tables", "cuda" if summary["gpus"] else "cpu")
    made = handin.write(tables, summary, {}, {chapter: {} for chapter in registry.CHAPTERS})
    assert {*re.findall(r"\]\((details/[^)]*)\)", made["report.md"])} == {*made} - {"report.md"}


def test_it_takes_nothing_from_experiments() -> None:
    """An experiment can be deleted, and what it allows is said where it is asked for."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "perfscribe" / "report").glob("*.py")]
    assert texts and not [text for text in texts if "perfscribe.experiments" in text]
    from perfscribe.experiments.flash_benchmarking import correctness
    from perfscribe.report import cs336_kernels

    assert {name: correctness.TOLERANCE[name] for name in cs336_kernels.TOLERANCE} == cs336_kernels.TOLERANCE
