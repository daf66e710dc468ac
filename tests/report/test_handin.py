"""The hand-in of every committed site: the course's problems, headers and limits."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from chapter_sites import SITES
from workspace import ROOT

from perfscribe.base import chapters
from perfscribe.report.anchors import anchor
from perfscribe.verbs.fill import verb

MOST_FIRST = 62


@cache
def text_of(site: str) -> str:
    return (ROOT / "report" / site / "report.md").read_text(encoding="utf-8")


def problems(site: str) -> dict[str, str]:
    """Each problem's text by its heading."""
    parts = re.split(r"(?m)^### ", text_of(site).split("\n## Not measured here")[0])[1:]
    return {part.split("\n", 1)[0]: re.split(r"(?m)^## ", part.split("\n", 1)[1])[0] for part in parts}


def on_any_machine(header: str) -> str:
    """A header row without padding; small figures are in MB, and ranks without a GPU are processes."""
    header = re.sub(r" *(?<!\\)\| *", " | ", header).strip().replace("processes", "GPUs").replace("mem_mb", "mem_gb")
    return re.sub(r"\(MB\b", "(GB", header)


@pytest.mark.parametrize("site", SITES)
def test_problems_and_headers_are_the_courses_and_the_first_page_is_short(site: str) -> None:
    names = json.loads((ROOT / "results" / site / "plan" / "report.json").read_text())["chapters"]
    later = ", 2026" if {"cs336", "cs336-2026"} <= {*names} else ""  # tells its headings from those of 2025
    wanted = [
        heading + (later if name == "cs336-2026" else "")
        for name in names
        for heading in chapters.read(name).headings()
    ]
    assert list(problems(site)) == wanted
    linked = re.findall(r"\]\(#([^)]*)\)", text_of(site))
    assert set(linked) <= {anchor(heading) for heading in [*wanted, "Not measured here"]}
    folder = ROOT / "report" / site
    beside = set(re.findall(r"\]\(((?:details/|figures/|appendix)[^)]*)\)", text_of(site)))
    assert all((folder / name).is_file() for name in beside)
    assert {f"details/{path.name}" for path in (folder / "details").glob("*.md")} <= beside, "not to be reached"
    known = yaml.safe_load(Path(__file__).with_name("handin_headers.yaml").read_text(encoding="utf-8"))
    for heading, text in problems(site).items():
        for header in re.findall(r"(?m)^(\|.*\|)\n\| ?-", text):
            assert on_any_machine(header) in map(on_any_machine, known[heading.removesuffix(later)]), heading
    first = re.split(r"(?m)^## (?:CS336 a|Polaris h|FSDP w)", text_of(site))[0]
    assert len(first.splitlines()) <= MOST_FIRST
    for line in re.findall(r"(?m)^\d\. (.*)$", first):
        assert len(line.split(" [")[0].split()) <= 25, line


UNITS = "GB|GiB|MB|MiB|s|ms|μs|%|×|x|TFLOP/s|GB/s|samp/s|samples/s|samples"
FIGURE = rf"([-+]?[\d.,]+( ± [\d.,]+)?( - [\d.,]+)?( ?({UNITS}))?|100% \(baseline\))[†‡]{{0,2}}"
RANKS = r"\d+-\d+"
MOST_OF_A_CELL = 5  # words; a cell of more is a sentence


@pytest.mark.parametrize("site", SITES)
def test_a_figure_is_written_as_the_specification_says_and_its_spread_says_of_what(site: str) -> None:
    for known in verb.known(ROOT, site):
        for row in known.table.rows:
            assert len(row) == len(known.table.header) <= 10 and all(cell.text for cell in row), known.name
            texts = [cell.text for cell in row if cell.able]
            figures = [text for text in texts if re.match(r"[-+±]?[\d.]", text) and len(text.split()) <= MOST_OF_A_CELL]
            assert not [text for text in figures if not re.fullmatch(f"{FIGURE}|{RANKS}", text)], known.name
            assert not [text for text in texts if re.search(r"\b(nan|inf|None|skipped|unsupported|not_run)\b", text)]
        wide = [cell.text for cell in known.table.cells if " ± " in cell.text]
        told = "± (half (IQR|the range|of its)|std)( of|[^;]* over) [\\da]"  # of how many
        assert not [text for text in wide if not re.search(told, known.table.setup + text)], known.name
